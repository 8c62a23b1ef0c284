//! The control plane's thread: carries bytes between the sockets and the state machine in [`super::state`].
//!
//! A worker whose parent in the tree has ended calls rank 0 from here, and rank 0 answers here. Both are rare, so the
//! sockets of their handshakes are not in the epoll set; while there are any, they are polled beside it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use super::exchange::flush_all;
use super::state::{TreeAction, TreeInput, TreeState};
use super::wire::{ControlKind, ControlLink, ControlMessage};
use super::{ControlError, ControlEvent, HEARTBEAT_INTERVAL, MessageTarget, QUEUE_BYTES_MAX, TreeLinks};
use crate::bell::Bell;
use crate::fork::PrivateFd;
use crate::handshake::dial::DialAttempt;
use crate::handshake::gate::ConnectionAcceptor;
use crate::handshake::proof::{ConnectionClaim, ConnectionPurpose};
use crate::secret::JobKey;
use crate::threads::{poll_until, spawn_native};
use crate::{Rank, notice};

/// How long `leave` and `shutdown` wait for the thread.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long `shutdown` waits for the workers that are connected through this one, so that none of their messages is
/// lost.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long it then waits for its own parent to read its last message.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);

const WAKE_TOKEN: u64 = u64::MAX;

/// The owner's handle on the thread.
pub(super) struct ControlDriver {
    mailbox: Arc<CommandMailbox>,
    thread: ThreadId,
}

struct CommandMailbox {
    state: Mutex<MailboxState>,
    changed: Condvar,
    wake: Bell,
}

#[derive(Default)]
struct MailboxState {
    commands: VecDeque<ControlCommand>,
    queued_bytes: usize,
    /// The thread has sent everything that was queued when it took the leave command.
    left: bool,
    /// The thread has ended.
    ended: bool,
}

enum ControlCommand {
    Send { to: MessageTarget, bytes: Vec<u8> },
    Leave,
    Stop,
}

/// How workers reconnect after their parent in the tree has ended.
pub(crate) enum ReturnWay {
    /// Not at all: every worker is connected to rank 0.
    None,
    /// Rank 0: accepts their calls.
    Gate(Box<ConnectionAcceptor>),
    /// The others: how to reach rank 0.
    Root { address: SocketAddr, key: JobKey },
}

/// Starts the thread of a worker at its place in the tree.
pub(super) fn start(
    me: Rank,
    failure_timeout: Duration,
    place: TreeLinks,
    on_event: Box<dyn Fn(ControlEvent) + Send + Sync>,
) -> Result<ControlDriver, ControlError> {
    let silent_ticks_max = failure_timeout.as_millis().div_ceil(HEARTBEAT_INTERVAL.as_millis()) as u32;
    let wake = Bell::new()?;
    let epoll = PrivateFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?);
    epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE_TOKEN), epoll::EventFlags::IN).map_err(io::Error::from)?;
    let mailbox = Arc::new(CommandMailbox { state: Mutex::default(), changed: Condvar::new(), wake });
    let TreeLinks { tree, up, children, return_way, .. } = place;
    let mut looper = ControlLoop {
        me,
        size: tree.size(),
        state: TreeState::new(me, tree, silent_ticks_max),
        links: BTreeMap::new(),
        epoll,
        mailbox: Arc::clone(&mailbox),
        on_event,
        return_way,
        arriving: Vec::new(),
        dial: None,
        closing: Vec::new(),
        retires_until: None,
        actions: Vec::new(),
        unread: Vec::new(),
        closed: Vec::new(),
        dropped: 0,
    };
    let linked = tree.parent(me).into_iter().zip(up).chain(tree.children(me).zip(children));
    for (rank, link) in linked {
        looper.links.insert(rank, PolledLink { link, is_read: false, wants_out: false });
        looper.read(rank)?;
    }
    let name = format!("tidemill-ctl-{me}");
    let handle = spawn_native(name, move || looper.run())?;
    Ok(ControlDriver { mailbox, thread: handle.thread().id() })
}

impl ControlDriver {
    pub(super) fn send(&self, to: MessageTarget, bytes: &[u8]) -> Result<(), ControlError> {
        let mut state = self.mailbox.state.lock();
        if state.ended {
            return Err(ControlError::Closed);
        }
        if state.queued_bytes + bytes.len() > QUEUE_BYTES_MAX {
            return Err(ControlError::QueueFull);
        }
        state.queued_bytes += bytes.len();
        state.commands.push_back(ControlCommand::Send { to, bytes: bytes.to_vec() });
        drop(state);
        self.mailbox.wake.ring();
        Ok(())
    }

    pub(super) fn leave(&self) {
        self.command_and_wait(ControlCommand::Leave, |state| state.left || state.ended);
    }

    pub(super) fn shutdown(&self) {
        self.command_and_wait(ControlCommand::Stop, |state| state.ended);
    }

    fn command_and_wait(&self, command: ControlCommand, done: impl Fn(&MailboxState) -> bool) {
        let mut state = self.mailbox.state.lock();
        if done(&state) {
            return;
        }
        state.commands.push_back(command);
        self.mailbox.wake.ring();
        // Inside `on_event` this is the thread itself, which cannot wait for itself.
        if thread::current().id() == self.thread {
            return;
        }
        let deadline = Instant::now() + GOODBYE_TIMEOUT;
        while !done(&state) {
            if self.mailbox.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }
}

struct PolledLink {
    link: ControlLink,
    /// Whether it is in the epoll set. An orphan's link joins it only when rank 0 starts to read from the link.
    is_read: bool,
    wants_out: bool,
}

struct ControlLoop {
    me: Rank,
    size: u32,
    state: TreeState,
    links: BTreeMap<Rank, PolledLink>,
    epoll: PrivateFd<OwnedFd>,
    mailbox: Arc<CommandMailbox>,
    on_event: Box<dyn Fn(ControlEvent) + Send + Sync>,
    return_way: ReturnWay,
    /// On rank 0: orphans that are authenticated and whose first message confirms that they know it.
    arriving: Vec<(Rank, ControlLink)>,
    /// On an orphan: its call to rank 0.
    dial: Option<DialAttempt>,
    /// Closed links with unsent bytes.
    closing: Vec<ControlLink>,
    /// When this worker must end at the latest, once it has been told to end.
    retires_until: Option<Instant>,
    actions: Vec<TreeAction>,
    /// Links that may hold messages that epoll does not report.
    unread: Vec<Rank>,
    closed: Vec<(Rank, String)>,
    dropped: u64,
}

/// Marks the end of the thread even if `on_event` panics, so that nobody waits for it.
struct EndMark(Arc<CommandMailbox>);

impl Drop for EndMark {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        state.commands.clear();
        self.0.changed.notify_all();
    }
}

impl ControlLoop {
    fn run(mut self) {
        // A local variable outlives `self`, which is dropped below: the sockets are closed before the end is marked.
        let mailbox = Arc::clone(&self.mailbox);
        let _mark = EndMark(mailbox);
        self.work();
        drop(self);
    }

    fn work(&mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut next_tick = Instant::now() + HEARTBEAT_INTERVAL;
        // Messages that arrived during start-up are in the links already.
        self.unread.extend(self.links.keys());
        self.read_unread();
        self.step(TreeInput::Tick);
        let mut leaving = false;
        loop {
            let now = Instant::now();
            if now >= next_tick {
                // Late ticks are not made up for; see the note on silence in [`super::state`].
                next_tick = now + HEARTBEAT_INTERVAL;
                self.step(TreeInput::Tick);
            }
            let mut commands = {
                let mut state = self.mailbox.state.lock();
                state.queued_bytes = 0;
                std::mem::take(&mut state.commands)
            };
            for command in commands.drain(..) {
                match command {
                    ControlCommand::Send { to, bytes } => self.step(TreeInput::Send { to, bytes }),
                    ControlCommand::Leave => {
                        leaving = true;
                        self.step(TreeInput::Leave);
                    }
                    // A leave may still have to be sent, and others may be connected through this worker.
                    ControlCommand::Stop => {
                        self.retires_until = Some(Instant::now() + RETIRE_TIMEOUT);
                        self.step(TreeInput::Retire);
                    }
                }
            }
            self.flush();
            if self.retires_until.is_some_and(|until| !self.state.is_needed() || Instant::now() >= until) {
                return self.linger();
            }
            let is_sent = || self.links.values().all(|wired| wired.link.backlog() == 0);
            if leaving && self.state.is_leave_certain() && is_sent() {
                leaving = false;
                self.mailbox.state.lock().left = true;
                self.mailbox.changed.notify_all();
            }
            let until = self.retires_until.map_or(next_tick, |until| until.min(next_tick));
            if let Err(e) = self.wait(&mut events, until) {
                notice!(self.me, "the control plane stopped: epoll: {e}");
                return;
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    WAKE_TOKEN => self.mailbox.wake.hush(),
                    rank => self.receive(Rank(rank as u32)),
                }
            }
            self.read_unread();
        }
    }

    /// Waits until `deadline` for something to happen, and advances handshakes.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, deadline: Instant) -> Result<(), rustix::io::Errno> {
        let timespec = |until: Instant| {
            let wait = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
        };
        let mut until = deadline;
        let gate = match &self.return_way {
            ReturnWay::Gate(gate) => Some(gate),
            ReturnWay::None | ReturnWay::Root { .. } => None,
        };
        if gate.is_some() || self.dial.is_some() {
            let mut fds = vec![PollFd::new(&self.epoll, PollFlags::IN)];
            fds.extend(self.arriving.iter().map(|(_, link)| PollFd::new(link, PollFlags::IN)));
            fds.extend(self.dial.iter().filter_map(DialAttempt::interest));
            let before_gate = fds.len();
            gate.iter().for_each(|gate| gate.interest(&mut fds));
            let deadlines = gate.iter().filter_map(|gate| gate.next_deadline());
            until = deadlines.chain(self.dial.iter().filter_map(DialAttempt::next_deadline)).fold(until, Instant::min);
            match rustix::event::poll(&mut fds, Some(&timespec(until))) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e),
            }
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            self.go_on_dialing(ready[before_gate - 1]);
            self.go_on_answering(&ready[before_gate..]);
            // epoll's answer is needed now: do not wait again.
            until = Instant::now();
        }
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timespec(until))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Closes a retired worker's link towards rank 0 so that everything it has passed on arrives: closing a socket
    /// with unread data drops what it has not sent.
    fn linger(&mut self) {
        let up = if self.state.has_retired() { self.state.up() } else { None };
        let Some(PolledLink { mut link, .. }) = up.and_then(|up| self.links.remove(&up)) else { return };
        let deadline = Instant::now() + LINGER_TIMEOUT;
        flush_all(std::slice::from_mut(&mut link), deadline);
        if link.stream().shutdown(Shutdown::Write).is_err() {
            return;
        }
        loop {
            match link.receive() {
                Err(_) => return,
                Ok(Some(_)) => {}
                Ok(None) => {
                    if !poll_until(&mut [PollFd::new(&link, PollFlags::IN)], deadline).unwrap_or(false) {
                        return;
                    }
                }
            }
        }
    }

    /// Advances an orphan's call to rank 0.
    fn go_on_dialing(&mut self, ready: PollFlags) {
        let Some(dial) = &mut self.dial else { return };
        // Without a socket to poll for, `ready` belongs to another socket, which is harmless.
        let Ok(Some(met)) = dial.advance(Instant::now(), ready) else { return };
        self.dial = None;
        let mut link = ControlLink::new(met.stream);
        link.queue(ControlKind::Attached, self.me, &[]);
        self.links.insert(Rank(0), PolledLink { link, is_read: false, wants_out: false });
        self.step(TreeInput::Attached { from: Rank(0) });
        self.read_from(Rank(0));
    }

    /// On rank 0: advances calls of orphans.
    fn go_on_answering(&mut self, ready: &[PollFlags]) {
        let ReturnWay::Gate(gate) = &mut self.return_way else { return };
        for met in gate.advance(Instant::now(), ready, &|_| false) {
            if met.call.size == self.size {
                self.arriving.push((met.call.from, ControlLink::new(met.stream)));
            }
        }
        for (rank, mut link) in std::mem::take(&mut self.arriving) {
            match link.receive() {
                Ok(None) => self.arriving.push((rank, link)),
                Ok(Some(message)) if message.kind == ControlKind::Attached && self.state.may_come_back(rank) => {
                    self.links.insert(rank, PolledLink { link, is_read: false, wants_out: false });
                    self.step(TreeInput::Attached { from: rank });
                }
                // The orphan gave up this call and calls again, or it is not welcome here.
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    /// Starts receiving from a link.
    fn read(&mut self, rank: Rank) -> io::Result<()> {
        let Some(wired) = self.links.get_mut(&rank) else { return Ok(()) };
        wired.link.tune()?;
        epoll::add(&self.epoll, &wired.link, epoll::EventData::new_u64(u64::from(rank.0)), epoll::EventFlags::IN)?;
        wired.is_read = true;
        Ok(())
    }

    fn read_from(&mut self, rank: Rank) {
        match self.read(rank) {
            Ok(()) => self.unread.push(rank),
            Err(e) => self.closed.push((rank, e.to_string())),
        }
    }

    fn read_unread(&mut self) {
        while let Some(rank) = self.unread.pop() {
            self.receive(rank);
        }
    }

    /// Handles all messages that a link holds.
    fn receive(&mut self, from: Rank) {
        while let Some(wired) = self.links.get_mut(&from) {
            match wired.link.receive() {
                Ok(Some(message)) => self.step(TreeInput::Received { from, message }),
                Ok(None) => return,
                Err(reason) => return self.step(TreeInput::Closed { from, reason }),
            }
        }
    }

    fn step(&mut self, input: TreeInput) {
        let mut actions = std::mem::take(&mut self.actions);
        self.state.handle(input, &mut actions);
        let (mut events, mut tells) = (Vec::new(), false);
        for action in actions.drain(..) {
            match action {
                TreeAction::Emit(event) => events.push(event),
                TreeAction::Close { link } => self.close(link),
                TreeAction::Read { link } => self.read_from(link),
                TreeAction::Dial => self.dial = self.call_root(),
                TreeAction::StopDialing => self.dial = None,
                TreeAction::Dropped { to } => self.tell_dropped(to),
                TreeAction::Send { link, message } => {
                    tells = true;
                    self.queue(link, &message);
                }
            }
        }
        self.actions = actions;
        // Sends to the others first: the program may end as soon as it learns of the event.
        if tells && !events.is_empty() {
            self.flush();
        }
        events.into_iter().for_each(|event| (self.on_event)(event));
    }

    /// Closes a link once everything is sent. Dropping the socket also removes it from the epoll set.
    fn close(&mut self, link: Rank) {
        let Some(PolledLink { mut link, is_read, .. }) = self.links.remove(&link) else { return };
        if matches!(link.flush(), Ok(false)) && (!is_read || epoll::delete(&self.epoll, &link).is_ok()) {
            self.closing.push(link);
        }
    }

    fn call_root(&self) -> Option<DialAttempt> {
        let ReturnWay::Root { address, key } = &self.return_way else { return None };
        let call = ConnectionClaim { purpose: ConnectionPurpose::Return, from: self.me, to: Rank(0), size: self.size };
        Some(DialAttempt::new(vec![*address], key.clone(), call, Instant::now()))
    }

    fn queue(&mut self, to: Rank, message: &ControlMessage) {
        let Some(wired) = self.links.get_mut(&to) else { return };
        let backlog = wired.link.backlog();
        // A heartbeat behind a backlog adds nothing: the backlog is a sign of life itself.
        if message.kind == ControlKind::Ping && backlog > 0 {
            return;
        }
        if message.is_droppable() && backlog + message.payload.len() > QUEUE_BYTES_MAX {
            return self.tell_dropped(to);
        }
        wired.link.queue_message(message);
    }

    fn tell_dropped(&mut self, to: Rank) {
        self.dropped += 1;
        if self.dropped.is_power_of_two() {
            let dropped = self.dropped;
            notice!(self.me, "rank {to} is too slow: {dropped} control message(s) to it were dropped");
        }
    }

    /// Sends what is queued on every link, and has epoll watch those that are full.
    fn flush(&mut self) {
        self.closing.retain_mut(|link| matches!(link.flush(), Ok(false)));
        for (&rank, wired) in &mut self.links {
            let wants_out = match wired.link.flush() {
                Ok(sent) => !sent,
                // The reading side will find the reason, after what the peer sent before it ended.
                Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => false,
                Err(e) => {
                    self.closed.push((rank, e.to_string()));
                    continue;
                }
            };
            if wants_out != wired.wants_out && wired.is_read {
                wired.wants_out = wants_out;
                let out = if wants_out { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let token = epoll::EventData::new_u64(u64::from(rank.0));
                if let Err(e) = epoll::modify(&self.epoll, &wired.link, token, epoll::EventFlags::IN | out) {
                    self.closed.push((rank, e.to_string()));
                }
            }
        }
        for (from, reason) in std::mem::take(&mut self.closed) {
            self.step(TreeInput::Closed { from, reason });
        }
    }
}
