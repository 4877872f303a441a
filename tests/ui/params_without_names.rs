//! Parameters are declared from fields with names and fixed types, or not at all.

use sealwire::Params;

#[derive(Params)]
struct Positions(f64, f64);

#[derive(Params)]
struct Generic<T> {
    value: T,
}

#[derive(Params)]
struct Unknown {
    when: std::time::SystemTime,
}

fn main() {}
