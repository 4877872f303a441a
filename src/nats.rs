//! A NATS connection of our own, for the two places that agents reach: what a service subscribes to, and a client's inbox.
//! Never reads a header block, and never lets anything that a peer sends end the connection.
//!
//! Client libraries parse header blocks on the connection's own task; async-nats 0.51 ends the connection when one does
//! not parse, and the broker passes every block on. Here a message is a subject, a reply subject and two runs of bytes;
//! what they mean is `wire`'s matter. Messages are handed over as they arrive, to a handler that does not wait, so
//! nothing queues up behind the socket: what waits, waits where its owner is known.

mod config;
mod connection;
mod dial;
mod event;
mod nkey;
mod outbound;
mod protocol;
mod servers;
mod session;
mod tls;

pub(crate) use config::Door;
pub use config::{BusConfig, BusError};
pub use connection::{Connection, OpenError, Options};
pub use event::{Event, Handler};
pub use outbound::PublishError;
pub use protocol::{Info, Message, Op, Parser, ProtocolError};
pub use session::{Session, Subject};

pub(crate) use dial::Login;
pub(crate) use servers::pause;
