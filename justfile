# Short names for the commands of the project. None of them is needed: each line can be typed as it is.

# The list of recipes.
default:
    @just --list

# Plays the whole chain against a real nats-server, with throw-away keys.
demo:
    cargo run --locked -- demo

# Every test; `just test guard` for those whose name has it.
test filter="":
    cargo test --locked {{ filter }}

# Every test but the two that take minutes: replicas that are killed under load, and the compose set-up.
quick:
    cargo test --locked -- --skip takes_minutes

# Formatting and lints, as CI has them.
lint:
    .ci/run format lint

# The documentation of the library.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked

# Dependencies: licences, sources, second versions, known vulnerabilities.
deny:
    .ci/run deny advisories

# One fuzz target for some seconds; what it learns stays in fuzz/corpus.
fuzz target seconds="60":
    mkdir -p fuzz/corpus/{{ target }} fuzz/artifacts
    cd fuzz && cargo run --locked --bin {{ target }} -- -max_total_time={{ seconds }} -artifact_prefix=artifacts/ corpus/{{ target }} seeds/{{ target }}

# The measurements.
bench:
    cargo bench --locked

# The tables of docs/performance.md, written into the page.
performance *parts:
    benches/all {{ parts }}

# Everything that CI checks.
ci:
    .ci/run
