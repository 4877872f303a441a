//! The Python package against a real broker: each test here runs one file of `tests/` below Python, on a stage of its own.
//! Never passes silently where Python is missing: it says so, and fails under CI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod checkers;
mod documents;
mod methods;
mod package;
mod served;
mod stage;

use stage::{Serves, Stage};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_notifications_and_batches() {
    Stage::open(Serves::Methods).await.pytest("test_calls.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_each_as_its_class() {
    Stage::open(Serves::Methods).await.pytest("test_errors.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_people_approve_first() {
    Stage::open(Serves::Nothing).await.pytest("test_approvals.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_threads_forks_and_ends() {
    Stage::open(Serves::Methods).await.pytest("test_loops.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_subscriptions_and_questions() {
    Stage::open(Serves::Methods).await.pytest("test_streams.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_callers() {
    Stage::open(Serves::Methods).await.pytest("test_tasks.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_services() {
    Stage::open(Serves::Nothing).await.pytest("test_tasks_served.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_functions() {
    Stage::open(Serves::Methods).await.pytest("test_tokens.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_of_programs() {
    Stage::open(Serves::Nothing).await.pytest("test_traces.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_in_python() {
    Stage::open(Serves::Nothing).await.pytest("test_service.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_started_checked_and_ended() {
    Stage::open(Serves::Nothing).await.pytest("test_serving.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projects_that_init_makes() {
    Stage::open(Serves::Nothing).await.pytest("test_init.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_of_asgi_applications() {
    Stage::open(Serves::Nothing).await.pytest("test_mounts_asgi.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_of_mcp_servers() {
    Stage::open(Serves::Nothing).await.pytest("test_mounts_mcp.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_do_what_they_say() {
    Stage::open(Serves::Examples).await.pytest("test_examples.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_of_mounts_do_what_they_say() {
    Stage::open(Serves::Examples).await.pytest("test_examples_mounts.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_of_frameworks() {
    // A clean environment for a wheel has no frameworks.
    if std::env::var_os("SEALWIRE_TEST_PYTHON").is_none() {
        Stage::open(Serves::Nothing).await.pytest("test_frameworks.py").await;
    }
}

/// CrewAI brings 1 GB of packages, some of which the other frameworks refuse: it has an environment of its own, which is made only if
/// somebody asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_of_crewai() {
    if std::env::var_os("SEALWIRE_TEST_CREWAI").is_none() {
        package::say("NOT TESTED, unless SEALWIRE_TEST_CREWAI is set: tools of CrewAI");
        return;
    }
    let python = package::crewai();
    Stage::open(Serves::Nothing).await.pytest_with(python, "test_crewai.py").await;
}

#[test]
fn values_and_types() {
    package::pytest("test_types.py", &[]);
}

#[test]
fn the_command_and_the_import() {
    package::pytest("test_main.py", &[]);
}
