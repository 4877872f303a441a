//! The sequence of checks as an attacker meets it, through `Service::handle`, without a socket. One file per question.

mod keys;
mod leaks;
mod limits;
mod log_floods;
mod order;
mod policy;
mod properties;
mod replies;
mod tamper;
