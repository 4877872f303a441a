//! Loads a service with calls and measures what becomes of them, for `sealwire bench`.
//! Never takes an error for an answer, and never leaves a call out of the measurement because the one before it was slow.

mod bare;
mod cpu;
mod crew;
mod error;
mod load;
mod pace;
mod plan;
mod report;
mod span;
mod tally;
mod thread;

pub use bare::BARE_SUBJECTS;
pub use cpu::WatchedProcess;
pub use crew::{Progress, run};
pub use error::BenchError;
pub use plan::{Bare, Load, MAX_CONNECTIONS, MAX_IN_FLIGHT, MAX_RATE, Plan, PlanError, Shape, Target};
pub use report::{Report, SideReport, Spread};
pub use tally::{Failed, Fault, Latency};
