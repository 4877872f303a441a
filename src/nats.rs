//! Our own NATS connection, for the two places that agents can reach: a service's subscriptions and a client's inbox.
//! Never reads a header block, and never lets anything that a peer sends end the connection.
//!
//! Client libraries parse header blocks on the connection's own task. async-nats 0.51 ends the connection if one does
//! not parse, and the broker forwards any block. Here a message is a subject, a reply subject and two byte strings;
//! `wire` interprets them. Each message goes straight to a handler that does not wait, so nothing queues up behind the
//! socket; messages wait only where their owner is known.
//!
//! This module can go once async-nats fails only the message on a malformed header block: docs/internals/nats.md.

mod config;
mod connection;
mod creds;
mod dial;
mod error;
mod event;
mod library;
mod login;
mod nkey;
mod outbound;
mod protocol;
mod servers;
mod session;
mod tls;
#[cfg(feature = "websockets")]
mod websocket;

pub use config::BusConfig;
pub use config::context::{environment_login, inbox_of_context, selected_context};
pub use connection::{Connection, OpenError, Options};
pub use error::BusError;
pub use event::Event;
pub use library::library_options;
pub use login::{LoginToken, LoginTokens};
pub use outbound::PublishError;
pub use protocol::{Info, Message, Op, Parser, ProtocolError};
pub use servers::pause;
pub use session::{Handler, Session, Subject};
