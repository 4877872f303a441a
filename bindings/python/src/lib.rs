//! The part of the Python package `sealwire` that is written in Rust: `sealwire._core`. What users see is in `python/sealwire`.
//! Never lets a thread of the runtime wait for the interpreter: `mailbox` is the only way from one to the other.

mod answer;
mod attachment;
mod client;
mod credentials;
mod declared;
mod event;
mod failure;
mod files;
mod log;
mod mailbox;
mod options;
mod outbox;
mod runtime;
mod served;
mod service;
mod stream;
mod task;
mod token;
mod topic;

/// The part of `sealwire` that is written in Rust. Not for use by others: it changes without notice.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::answer::json_flaw;
    #[pymodule_export]
    use super::attachment::Attachment;
    #[pymodule_export]
    use super::client::{Connection, connect};
    #[pymodule_export]
    use super::credentials::Credentials;
    #[pymodule_export]
    use super::failure::error_kinds;
    #[pymodule_export]
    use super::files::read_trusted;
    #[pymodule_export]
    use super::log::{log_close, log_level, log_lines};
    #[pymodule_export]
    use super::mailbox::Mailbox;
    #[pymodule_export]
    use super::options::{Options, Receipt, Tokens};
    #[pymodule_export]
    use super::runtime::{after_fork, shutdown};
    #[pymodule_export]
    use super::served::ServedCall;
    #[pymodule_export]
    use super::service::{Stop, check, name_fault, serve};
    #[pymodule_export]
    use super::stream::CallParts;
    #[pymodule_export]
    use super::task::TaskQuestions;
    #[pymodule_export]
    use super::token::{TokenFunction, TokenQuestion};
    #[pymodule_export]
    use super::topic::Topic;

    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
