//! What a user would take instead of Sealwire, beside it, in one run on one machine: the same two methods behind each, and the same load,
//! in slices that take turns. Prints the tables of docs/performance.md.
//! Never compares servers that let everybody in: except for NATS alone, each first has to refuse a caller without a token.

mod callers;
mod cpu;
mod error;
mod jwt;
mod load;
mod plan;
mod servers;
mod sides;
mod slice;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Fallible;
use crate::plan::{Plan, Work};
use crate::servers::Kind;

const USAGE: &str = "\
cargo run --release --locked                    everything, in about twenty minutes
cargo run --release --locked -- --rounds 1      a first look
  --rounds N        slices of each side in each case (5); figures are medians of them
  --slice MS        the length of one, in milliseconds (1000)
  --in-flight N,…   calls under way (1,64,128,512)
  --work NAME,…     of add, echo-256, echo-4096
  --side NAME,…     only these sides
  --threads N       worker threads of each server but Python's; 0, the default, is one thread for everything
  --python PROGRAM  a Python with tests/interop/requirements.txt (target/tmp/python/bin/python, which the project's tests make)";

fn main() -> Fallible<()> {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if first.as_deref() == Some("serve") {
        let kind: Kind = words.next().ok_or(USAGE)?.parse()?;
        let threads = words.next().ok_or(USAGE)?.parse()?;
        return servers::run(kind, threads, words.next().unwrap_or_default().into());
    }
    let mut plan = Plan {
        rounds: 5,
        slice: Duration::from_secs(1),
        in_flight: vec![1, 64, 128, 512],
        works: vec![Work::Add, Work::Echo(256), Work::Echo(4096)],
        sides: None,
        threads: 0,
        python: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tmp/python/bin/python")),
    };
    let mut words = first.into_iter().chain(words);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        match word.as_str() {
            "--rounds" => plan.rounds = value.parse()?,
            "--slice" => plan.slice = Duration::from_millis(value.parse()?),
            "--in-flight" => plan.in_flight = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--work" => plan.works = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--side" => plan.sides = Some(value.split(',').map(str::to_owned).collect()),
            "--threads" => plan.threads = value.parse()?,
            "--python" => plan.python = value.into(),
            _ => return Err(USAGE.into()),
        }
    }
    load::measure(&plan)
}
