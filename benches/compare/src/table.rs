//! The tables, as Markdown: medians over the rounds.

use crate::plan::Plan;
use crate::sides::Side;
use crate::slice::{Found, Slice};

pub fn print(plan: &Plan, sides: &[Side], found: &Found) {
    for &work in &plan.works {
        println!("{}:\n", work.describe());
        let mut head = "| |".to_owned();
        for in_flight in &plan.in_flight {
            head += &format!(" {in_flight} in flight: calls/s | p50 µs | p99 µs |");
        }
        println!("{head}\n|---|{}", "---|".repeat(3 * plan.in_flight.len()));
        for (at, side) in sides.iter().enumerate() {
            let mut row = format!("| {} |", side.name);
            for &in_flight in &plan.in_flight {
                let slices = &found[&(work, in_flight)][at];
                let by = |part: fn(&Slice) -> f64| median(slices.iter().map(part));
                row += &format!(
                    " {} | {} | {} |",
                    known(by(|s| s.rate), 0),
                    known(by(|s| s.p50), 0),
                    known(by(|s| s.p99), 0)
                );
            }
            println!("{row}");
        }
        println!();
    }
    // Where one more call does not wait for the others' system calls, nor is served with hundreds of them in one.
    let Some(&in_flight) = plan.in_flight.iter().find(|&&n| n == 64).or(plan.in_flight.last()) else { return };
    println!(
        "Processor time of a call in µs, {in_flight} in flight, and calls/s beside the first row in the same round:\n"
    );
    let works: String =
        plan.works.iter().map(|work| format!(" {}: client | server | between | all | ratio |", work.name())).collect();
    println!("| |{works}\n|---|{}", "---|".repeat(5 * plan.works.len()));
    for (at, side) in sides.iter().enumerate() {
        let mut row = format!("| {} |", side.name);
        for &work in &plan.works {
            let rounds = &found[&(work, in_flight)];
            let slices = &rounds[at];
            let of = |slice: &Slice, server: bool| -> f64 {
                slice
                    .processes
                    .iter()
                    .filter(|(name, _)| (*name == "server") == server)
                    .fold(0.0, |sum, (_, us)| sum + us)
            };
            let client = median(slices.iter().map(|slice| slice.client));
            let server = median(slices.iter().map(|slice| of(slice, true)));
            let between = median(slices.iter().map(|slice| of(slice, false)));
            let all = median(slices.iter().map(|slice| slice.client + of(slice, true) + of(slice, false)));
            let ratio = median(slices.iter().zip(&rounds[0]).map(|(slice, first)| slice.rate / first.rate));
            let [client, server, between, all] = [client, server, between, all].map(|us| known(us, 1));
            row += &format!(" {client} | {server} | {between} | {all} | {} |", known(ratio, 2));
        }
        println!("{row}");
    }
    println!();
}

fn known(figure: f64, digits: usize) -> String {
    if figure.is_nan() { "–".to_owned() } else { format!("{figure:.digits$}") }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
