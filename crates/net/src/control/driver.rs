//! The control plane's thread: carries bytes between the sockets and the decisions in [`super::star`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::star::{StarAction, StarInput, StarState};
use super::wire::{ControlKind, ControlLink};
use super::{ControlError, ControlEvent, HEARTBEAT_INTERVAL, MessageTarget, QUEUE_BYTES_MAX};
use crate::fork::PrivateFd;
use crate::threads::spawn_native;
use crate::{Rank, notice};

/// How long `leave` and `shutdown` wait for the thread.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

const WAKE_TOKEN: u64 = u64::MAX;

/// The owner's side of the thread.
pub(super) struct ControlDriver {
    mailbox: Arc<CommandMailbox>,
    thread: ThreadId,
}

struct CommandMailbox {
    state: Mutex<MailboxState>,
    changed: Condvar,
    wake: PrivateFd<OwnedFd>,
}

#[derive(Default)]
struct MailboxState {
    commands: VecDeque<ControlCommand>,
    queued_bytes: usize,
    /// The thread has sent everything that was queued when it saw the leave.
    left: bool,
    /// The thread has ended.
    ended: bool,
}

enum ControlCommand {
    Send { to: MessageTarget, bytes: Vec<u8> },
    Leave,
    Stop,
}

/// Starts the thread with one link per rank it is connected to.
pub(super) fn start(
    me: Rank,
    size: u32,
    failure_timeout: Duration,
    links: Vec<(Rank, ControlLink)>,
    on_event: Box<dyn Fn(ControlEvent) + Send + Sync>,
) -> Result<ControlDriver, ControlError> {
    let silent_ticks_max = failure_timeout.as_millis().div_ceil(HEARTBEAT_INTERVAL.as_millis()) as u32;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = PrivateFd::new(eventfd(0, flags).map_err(io::Error::from)?);
    let epoll = PrivateFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?);
    epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE_TOKEN), epoll::EventFlags::IN).map_err(io::Error::from)?;
    let mut table: Vec<Option<PolledLink>> = Vec::new();
    table.resize_with(size as usize, || None);
    for (rank, link) in links {
        let token = epoll::EventData::new_u64(u64::from(rank.0));
        epoll::add(&epoll, &link, token, epoll::EventFlags::IN).map_err(io::Error::from)?;
        table[rank.index()] = Some(PolledLink { link, wants_out: false });
    }
    let mailbox = Arc::new(CommandMailbox { state: Mutex::default(), changed: Condvar::new(), wake });
    let looper = ControlLoop {
        me,
        star: StarState::new(me, size, silent_ticks_max),
        links: table,
        epoll,
        mailbox: Arc::clone(&mailbox),
        on_event,
        actions: Vec::new(),
        closed: Vec::new(),
        dropped: 0,
    };
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
        self.mailbox.ring();
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
        self.mailbox.ring();
        // The thread itself, in `on_event`, cannot wait for the thread.
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

impl CommandMailbox {
    fn ring(&self) {
        // The only failure is a counter at its maximum, which wakes the thread as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct PolledLink {
    link: ControlLink,
    wants_out: bool,
}

struct ControlLoop {
    me: Rank,
    star: StarState,
    links: Vec<Option<PolledLink>>,
    epoll: PrivateFd<OwnedFd>,
    mailbox: Arc<CommandMailbox>,
    on_event: Box<dyn Fn(ControlEvent) + Send + Sync>,
    actions: Vec<StarAction>,
    closed: Vec<(Rank, String)>,
    dropped: u64,
}

/// Marks the end of the thread also when `on_event` panics, so that nobody waits for it.
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
        // Declared after `self` is moved in, dropped last: the sockets are closed when the end is marked.
        let mailbox = Arc::clone(&self.mailbox);
        let _mark = EndMark(mailbox);
        self.work();
        drop(self);
    }

    fn work(&mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut next_tick = Instant::now() + HEARTBEAT_INTERVAL;
        // What arrived during start-up lies in the links already.
        for index in 0..self.links.len() {
            self.receive(Rank(index as u32));
        }
        self.step(StarInput::Tick);
        let mut leaving = false;
        loop {
            let now = Instant::now();
            if now >= next_tick {
                // Late ticks are not made up for: see the module's note on silence.
                next_tick = now + HEARTBEAT_INTERVAL;
                self.step(StarInput::Tick);
            }
            let mut commands = {
                let mut state = self.mailbox.state.lock();
                state.queued_bytes = 0;
                std::mem::take(&mut state.commands)
            };
            for command in commands.drain(..) {
                match command {
                    ControlCommand::Send { to, bytes } => self.step(StarInput::Send { to, bytes }),
                    ControlCommand::Leave => {
                        leaving = true;
                        self.step(StarInput::Leave);
                    }
                    ControlCommand::Stop => {
                        // A leave may be waiting to be sent.
                        self.flush();
                        return;
                    }
                }
            }
            self.flush();
            if leaving && self.links.iter().flatten().all(|wired| wired.link.backlog() == 0) {
                leaving = false;
                self.mailbox.state.lock().left = true;
                self.mailbox.changed.notify_all();
            }
            let wait = next_tick.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    notice!(self.me, "the control plane stopped: epoll: {e}");
                    return;
                }
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    WAKE_TOKEN => {
                        let _ = rustix::io::read(&self.mailbox.wake, &mut [0; 8]);
                    }
                    rank => self.receive(Rank(rank as u32)),
                }
            }
        }
    }

    /// Takes all messages that a link holds.
    fn receive(&mut self, from: Rank) {
        while let Some(wired) = &mut self.links[from.index()] {
            match wired.link.receive() {
                Ok(Some(message)) => self.step(StarInput::Received { from, message }),
                Ok(None) => return,
                Err(reason) => return self.step(StarInput::Closed { from, reason }),
            }
        }
    }

    fn step(&mut self, input: StarInput) {
        let mut actions = std::mem::take(&mut self.actions);
        self.star.handle(input, &mut actions);
        let (mut events, mut tells) = (Vec::new(), false);
        for action in actions.drain(..) {
            match action {
                StarAction::Emit(event) => events.push(event),
                // Dropping the socket also takes it out of the epoll set.
                StarAction::Close { link } => self.links[link.index()] = None,
                StarAction::Send { link, message } => {
                    tells = true;
                    self.queue(link, &message);
                }
            }
        }
        self.actions = actions;
        // The others first: a program may end at once when it hears of it.
        if tells && !events.is_empty() {
            self.flush();
        }
        events.into_iter().for_each(|event| (self.on_event)(event));
    }

    fn queue(&mut self, to: Rank, message: &super::wire::ControlMessage) {
        let Some(wired) = &mut self.links[to.index()] else { return };
        let backlog = wired.link.backlog();
        // A heartbeat behind a backlog says nothing: what is ahead of it is a sign of life too.
        if message.kind == ControlKind::Ping && backlog > 0 {
            return;
        }
        // News of other workers is never dropped: there are few of them.
        if message.kind == ControlKind::ToOne && backlog + message.payload.len() > QUEUE_BYTES_MAX {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                let dropped = self.dropped;
                notice!(self.me, "rank {to} is too slow: {dropped} control message(s) to it were dropped");
            }
            return;
        }
        wired.link.queue(message.kind, message.rank, &message.payload);
    }

    /// Sends what is queued on every link, and asks epoll about those that are full.
    fn flush(&mut self) {
        for (index, slot) in self.links.iter_mut().enumerate() {
            let Some(wired) = slot else { continue };
            let wants_out = match wired.link.flush() {
                Ok(sent) => !sent,
                // The reading side will see why, after what the peer said before it ended.
                Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => false,
                Err(e) => {
                    self.closed.push((Rank(index as u32), e.to_string()));
                    continue;
                }
            };
            if wants_out != wired.wants_out {
                wired.wants_out = wants_out;
                let out = if wants_out { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let token = epoll::EventData::new_u64(index as u64);
                if let Err(e) = epoll::modify(&self.epoll, &wired.link, token, epoll::EventFlags::IN | out) {
                    self.closed.push((Rank(index as u32), e.to_string()));
                }
            }
        }
        for (from, reason) in std::mem::take(&mut self.closed) {
            self.step(StarInput::Closed { from, reason });
        }
    }
}
