# Short names for the project's commands. None of them is needed: each line can be typed as it is.

# Lists the recipes.
default:
    @just --list

# Plays the whole chain against a real nats-server, with throw-away keys.
demo:
    cargo demo

# Every test; `just test guard` runs those with `guard` in their names.
test filter="":
    cargo test --locked {{ filter }}

# Every test but the two that take minutes: replicas that are killed under load, and the compose set-up.
quick:
    cargo test --locked -- --skip takes_minutes

# Formatting and lints, as in CI.
lint:
    .ci/run format lint

# The documentation of the library.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked

# The documents as one site, in target/site.
site:
    .ci/run site

# Dependencies: licences, sources, second versions, known vulnerabilities.
deny:
    .ci/run deny advisories

# Runs one fuzz target for some seconds; its findings stay in fuzz/corpus.
fuzz target seconds="60":
    mkdir -p fuzz/corpus/{{ target }} fuzz/artifacts
    cd fuzz && cargo run --locked --bin {{ target }} -- -max_total_time={{ seconds }} -artifact_prefix=artifacts/ corpus/{{ target }} seeds/{{ target }}

# The benchmarks.
bench:
    cargo bench --locked

# Measures the tables of docs/performance.md, and writes them into the page.
performance *parts:
    benches/all {{ parts }}

# Everything that CI checks.
ci:
    .ci/run
