//! The handshake that opens every connection of a job: a mutual challenge with HMAC-SHA256 under the job's secret.
//!
//! A state machine without sockets or clocks: bytes in, bytes out, so that it can be fuzzed and replayed.
//!
//! ```text
//! client                                                       server
//!   hello:   magic protocol purpose from to size nonce  ---->
//!                                   <----  challenge: magic protocol code nonce
//!   proof:   HMAC(key, "client" transcript)             ---->
//!                                   <----  verdict:   code HMAC(key, "server" transcript)
//! ```
//!
//! The server proves nothing before the client has, fresh nonces from both sides make a recorded conversation
//! worthless, and the two labels keep one side's proof from being replayed as the other's. Each message has a fixed
//! length, so an unproven peer costs at most [`CHUNK_BYTES_MAX`] bytes of memory. Nothing after the handshake is
//! encrypted.

use hmac::Mac;

use crate::Rank;
use crate::secret::JobKey;

/// The version of the wire protocol (handshake, control messages and frames together). Workers of one job must agree.
pub const PROTOCOL: u16 = 6;

const MAGIC: [u8; 8] = *b"TIDEMILL";
const PREFIX_BYTES: usize = 12;
const HELLO_BYTES: usize = PREFIX_BYTES + 12 + NONCE_BYTES;
const CHALLENGE_BYTES: usize = PREFIX_BYTES + NONCE_BYTES;
const MAC_BYTES: usize = 32;
const VERDICT_BYTES: usize = 4 + MAC_BYTES;
const NONCE_BYTES: usize = 32;

/// The longest piece that either side reads at once.
pub(crate) const CHUNK_BYTES_MAX: usize = HELLO_BYTES;

pub(crate) type Nonce = [u8; NONCE_BYTES];

/// What a connection is for.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    /// A worker joins the job at rank 0; the connection may become its control link.
    Join = 1,
    /// Two workers exchange frames.
    Frames = 2,
    /// A worker's connection to its parent in the tree of the control plane, when the job starts.
    Child = 3,
    /// A worker whose parent has ended connects to rank 0 again.
    Return = 4,
}

/// Who calls whom, and for what, as the client claims and its proof confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionClaim {
    pub(crate) purpose: ConnectionPurpose,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) size: u32,
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum HandshakeError {
    #[error("the other side does not speak Tidemill's protocol")]
    Stranger,
    #[error(
        "the other side runs another version of Tidemill (wire protocol {theirs}, here {PROTOCOL}); install the same \
         version on every host"
    )]
    Protocol { theirs: u16 },
    #[error(
        "the secret or the job's name differs; give every worker the same TIDEMILL_SECRET and TIDEMILL_JOB (`tidemill \
         run` does)"
    )]
    Secret,
    #[error("the other side expected a connection from a different worker")]
    NotExpected,
    #[error("the other side is calling this worker itself")]
    Busy,
    #[error("the other side does not know the job's secret: its proof is wrong")]
    Impostor,
    #[error("{0}")]
    Broken(String),
}

impl HandshakeError {
    /// Whether retrying is pointless. Other failures may pass: the peer may have been a remnant of an earlier job on
    /// this port, or busy.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, HandshakeError::Protocol { .. } | HandshakeError::Secret)
    }
}

/// The server's answers on the wire.
mod code {
    pub(super) const WELCOME: u8 = 0;
    pub(super) const OTHER_PROTOCOL: u8 = 1;
    pub(super) const WRONG_SECRET: u8 = 2;
    pub(super) const NOT_EXPECTED: u8 = 3;
    pub(super) const BUSY: u8 = 4;
}

/// What the driver does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    /// Send the output, then read exactly this many bytes.
    Read(usize),
    /// Send the output; then the connection belongs to the caller.
    Done(ConnectionClaim),
}

/// The calling side.
pub(crate) struct HandshakeClient {
    key: JobKey,
    call: ConnectionClaim,
    transcript: Vec<u8>,
    state: ClientState,
}

enum ClientState {
    Prefix,
    Nonce,
    Verdict,
}

impl HandshakeClient {
    /// Starts a call and outputs the hello.
    pub(crate) fn start(key: JobKey, call: ConnectionClaim, nonce: Nonce, out: &mut Vec<u8>) -> (Self, HandshakeStep) {
        let mut hello = Vec::with_capacity(HELLO_BYTES + CHALLENGE_BYTES);
        hello.extend_from_slice(&prefix(FROM_CLIENT, call.purpose as u8));
        for number in [call.from.0, call.to.0, call.size] {
            hello.extend_from_slice(&number.to_le_bytes());
        }
        hello.extend_from_slice(&nonce);
        debug_assert_eq!(hello.len(), HELLO_BYTES);
        out.extend_from_slice(&hello);
        (
            HandshakeClient { key, call, transcript: hello, state: ClientState::Prefix },
            HandshakeStep::Read(PREFIX_BYTES),
        )
    }

    /// Receives the bytes last requested.
    pub(crate) fn receive(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<HandshakeStep, HandshakeError> {
        match self.state {
            ClientState::Prefix => {
                let (theirs, verdict) = parse_prefix(FROM_SERVER, chunk)?;
                if theirs != PROTOCOL || verdict == code::OTHER_PROTOCOL {
                    return Err(HandshakeError::Protocol { theirs });
                }
                self.transcript.extend_from_slice(chunk);
                self.state = ClientState::Nonce;
                Ok(HandshakeStep::Read(NONCE_BYTES))
            }
            ClientState::Nonce => {
                self.transcript.extend_from_slice(chunk);
                let proof = self.key.prove(b"client", &self.transcript).finalize().into_bytes();
                out.extend_from_slice(&proof);
                self.state = ClientState::Verdict;
                Ok(HandshakeStep::Read(VERDICT_BYTES))
            }
            ClientState::Verdict => {
                let (verdict, proof) = chunk.split_at(4);
                match verdict[0] {
                    code::WELCOME => {}
                    code::WRONG_SECRET => return Err(HandshakeError::Secret),
                    code::NOT_EXPECTED => return Err(HandshakeError::NotExpected),
                    code::BUSY => return Err(HandshakeError::Busy),
                    _ => return Err(HandshakeError::Stranger),
                }
                let expected = self.key.prove(b"server", &self.transcript);
                expected.verify_slice(proof).map_err(|_| HandshakeError::Impostor)?;
                Ok(HandshakeStep::Done(self.call))
            }
        }
    }
}

/// The called side.
pub(crate) struct HandshakeServer {
    key: JobKey,
    purpose: ConnectionPurpose,
    me: Rank,
    nonce: Nonce,
    transcript: Vec<u8>,
    call: Option<ConnectionClaim>,
    state: ServerState,
}

enum ServerState {
    Prefix,
    Hello,
    Proof,
}

impl HandshakeServer {
    /// Waits for a caller that wants `purpose` from rank `me`.
    pub(crate) fn start(key: JobKey, purpose: ConnectionPurpose, me: Rank, nonce: Nonce) -> (Self, HandshakeStep) {
        let transcript = Vec::with_capacity(HELLO_BYTES + CHALLENGE_BYTES);
        let server = HandshakeServer { key, purpose, me, nonce, transcript, call: None, state: ServerState::Prefix };
        (server, HandshakeStep::Read(PREFIX_BYTES))
    }

    /// Receives the bytes last requested. `is_calling` says whether this side is calling a rank itself; the caller
    /// then has to give way. On an error, `out` may hold a last message that tells an honest caller why.
    pub(crate) fn receive(
        &mut self,
        chunk: &[u8],
        is_calling: &dyn Fn(Rank) -> bool,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        match self.state {
            ServerState::Prefix => {
                let (theirs, _) = parse_prefix(FROM_CLIENT, chunk)?;
                if theirs != PROTOCOL {
                    out.extend_from_slice(&prefix(FROM_SERVER, code::OTHER_PROTOCOL));
                    return Err(HandshakeError::Protocol { theirs });
                }
                self.transcript.extend_from_slice(chunk);
                self.state = ServerState::Hello;
                Ok(HandshakeStep::Read(HELLO_BYTES - PREFIX_BYTES))
            }
            ServerState::Hello => {
                self.transcript.extend_from_slice(chunk);
                let number = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().expect("four bytes"));
                let purpose = match self.transcript[10] {
                    1 => ConnectionPurpose::Join,
                    2 => ConnectionPurpose::Frames,
                    3 => ConnectionPurpose::Child,
                    4 => ConnectionPurpose::Return,
                    _ => return Err(HandshakeError::Stranger),
                };
                self.call =
                    Some(ConnectionClaim { purpose, from: Rank(number(0)), to: Rank(number(4)), size: number(8) });
                let at = self.transcript.len();
                self.transcript.extend_from_slice(&prefix(FROM_SERVER, code::WELCOME));
                self.transcript.extend_from_slice(&self.nonce);
                out.extend_from_slice(&self.transcript[at..]);
                self.state = ServerState::Proof;
                Ok(HandshakeStep::Read(MAC_BYTES))
            }
            ServerState::Proof => {
                let call = self.call.expect("a proof follows a hello");
                let expected = self.key.prove(b"client", &self.transcript);
                if expected.verify_slice(chunk).is_err() {
                    out.extend_from_slice(&verdict(code::WRONG_SECRET, &[0; MAC_BYTES]));
                    return Err(HandshakeError::Secret);
                }
                if call.purpose != self.purpose || call.to != self.me {
                    out.extend_from_slice(&verdict(code::NOT_EXPECTED, &[0; MAC_BYTES]));
                    return Err(HandshakeError::NotExpected);
                }
                if is_calling(call.from) {
                    out.extend_from_slice(&verdict(code::BUSY, &[0; MAC_BYTES]));
                    return Err(HandshakeError::Busy);
                }
                let proof = self.key.prove(b"server", &self.transcript).finalize().into_bytes();
                out.extend_from_slice(&verdict(code::WELCOME, &proof));
                Ok(HandshakeStep::Done(call))
            }
        }
    }
}

/// The sender of a message. A client that connects to a free port in the ephemeral range may reach itself, and must
/// not mistake its own hello for a challenge.
const FROM_CLIENT: u8 = 1;
const FROM_SERVER: u8 = 2;

fn prefix(side: u8, last: u8) -> [u8; PREFIX_BYTES] {
    let mut bytes = [0; PREFIX_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
    bytes[10] = last;
    bytes[11] = side;
    bytes
}

fn parse_prefix(side: u8, chunk: &[u8]) -> Result<(u16, u8), HandshakeError> {
    if chunk[..8] != MAGIC || chunk[11] != side {
        return Err(HandshakeError::Stranger);
    }
    Ok((u16::from_le_bytes([chunk[8], chunk[9]]), chunk[10]))
}

fn verdict(code: u8, proof: &[u8]) -> [u8; VERDICT_BYTES] {
    let mut bytes = [0; VERDICT_BYTES];
    bytes[0] = code;
    bytes[4..].copy_from_slice(proof);
    bytes
}
