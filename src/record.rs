//! The record: one line of JSON for each decision and for each outcome, numbered and chained within a session (docs/records.md).
//! Never decides what goes into a line: callers hand in what is fit to be kept.

mod body;
mod chain;
mod folder;
mod line;
mod lines;
mod options;
mod outcome;
mod recorder;
mod revocation;
mod salt;
mod writer;

pub(crate) use body::Body;
pub use chain::Chain;
pub use folder::{RecordFile, record_files};
pub use line::{FIRST, Head, Kind, MAX_LINE, read_head};
pub use options::{RecordConfig, RecordError};
pub use outcome::OutcomeRecord;
pub use recorder::Recorder;
pub use revocation::RevocationRecord;
pub use salt::Salt;
