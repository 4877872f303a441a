//! Loads a service with calls and measures what becomes of them, for `sealwire bench`.
//! Never takes an error for an answer, and never leaves a call out of the measurement because the one before it was slow.

mod bare;
mod cpu;
mod crew;
mod load;
mod pace;
mod plan;
mod report;
mod svg;
mod tally;

pub use bare::{BARE_SUBJECTS, Bare};
pub use cpu::Watched;
pub use crew::{BenchError, Progress, run};
pub use plan::{Load, MAX_CONNECTIONS, MAX_IN_FLIGHT, MAX_RATE, Plan, PlanError, Shape, Target};
pub use report::{Measured, Report, Spread};
pub use svg::curve;
pub use tally::{Failed, Fault, Latency};
