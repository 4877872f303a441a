//! The tasks of this process, while they run and for a while after.
//! Never shows a task to another caller, or at another service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sealwire_gateway::dialect::Refusal;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::fault;
use crate::forms::State;
use crate::raw::raw;
use crate::task::Task;

/// How long an ended task is kept, unless newer ones need the room; and how many, and how many bytes, of one caller and of all.
const KEPT_FOR: Duration = Duration::from_secs(600);
const OF_ONE: (usize, usize) = (32, 4 << 20);
const OF_ALL: (usize, usize) = (1_024, 64 << 20);
/// The default and the largest number of tasks on a page.
const PAGE: usize = 50;
const MAX_PAGE: usize = 100;
/// The most bytes on a page, unless it has only one task.
const PAGE_BYTES: usize = 1 << 20;

/// The tasks that clients know of. Running ones are bounded where they are started.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<HashMap<String, Arc<Task>>>);

/// `ListTasks`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Filter {
    context_id: Option<String>,
    status: Option<State>,
    page_size: Option<usize>,
    page_token: Option<String>,
    status_timestamp_after: Option<String>,
    include_artifacts: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    tasks: Vec<Box<RawValue>>,
    next_page_token: String,
    page_size: usize,
    total_size: usize,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the task known to clients.
    pub(crate) fn show(&self, task: &Arc<Task>) {
        if task.show() {
            self.lock().insert(task.id().to_owned(), Arc::clone(task));
        }
    }

    /// The task with this id, if it belongs to this caller at this service.
    pub(crate) fn of(&self, owner: &str, service: &str, id: &str) -> Option<Arc<Task>> {
        let found = self.lock().get(id).map(Arc::clone);
        found.filter(|task| task.is_of(owner, service))
    }

    /// The tasks of this caller at this service, the most recently changed first.
    pub(crate) fn list(&self, owner: &str, service: &str, filter: Filter) -> Result<Box<RawValue>, Refusal> {
        let page_size = filter.page_size.unwrap_or(PAGE);
        if !(1..=MAX_PAGE).contains(&page_size) {
            return Err(fault::invalid("pageSize", "write 1 to 100"));
        }
        let time = |text: &String| OffsetDateTime::parse(text, &Rfc3339);
        let after = filter.status_timestamp_after.as_ref().map(time).transpose();
        let after = after.map_err(|error| fault::invalid("statusTimestampAfter", error.to_string()))?;
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        let context = set(filter.context_id);
        let wanted = filter.status.filter(|state| *state != State::Unspecified);
        let all: Vec<_> = self.lock().values().filter(|task| task.is_of(owner, service)).map(Arc::clone).collect();
        let mut found: Vec<_> = all
            .into_iter()
            .map(|task| (task.state(), task))
            .filter(|((state, at), task)| {
                wanted.is_none_or(|wanted| wanted == *state)
                    && context.as_deref().is_none_or(|context| context == task.context())
                    && after.is_none_or(|after| after < *at)
            })
            .collect();
        found.sort_by(|((_, left), one), ((_, right), other)| (right, one.id()).cmp(&(left, other.id())));
        let total_size = found.len();
        let begin = match set(filter.page_token) {
            None => 0,
            Some(last) => {
                let at = found.iter().position(|(_, task)| task.id() == last);
                at.ok_or_else(|| fault::invalid("pageToken", "the list has changed: start again"))? + 1
            }
        };
        let with_artifacts = filter.include_artifacts.unwrap_or(false);
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        for (_, task) in found.iter().skip(begin).take(page_size) {
            let snapshot = task.snapshot(with_artifacts);
            bytes += snapshot.get().len();
            if bytes > PAGE_BYTES && !tasks.is_empty() {
                break;
            }
            tasks.push(snapshot);
        }
        let end = begin + tasks.len();
        let last = end.checked_sub(1).filter(|_| end < total_size).and_then(|last| found.get(last));
        let next = last.map(|(_, task)| task.id().to_owned());
        Ok(raw(&Listed { page_size: tasks.len(), tasks, next_page_token: next.unwrap_or_default(), total_size }))
    }

    /// Forgets ended tasks that have been kept long enough or have no room, the oldest first.
    pub(crate) fn tidy(&self) {
        let mut all = self.lock();
        let mut ended: Vec<(Instant, usize, Arc<Task>)> = all
            .values()
            .filter_map(|task| task.ended().map(|(ended, bytes)| (ended, bytes, Arc::clone(task))))
            .collect();
        ended.sort_by_key(|(ended, ..)| std::cmp::Reverse(*ended));
        let mut of_all = (0, 0);
        let mut of_one: HashMap<Arc<str>, (usize, usize)> = HashMap::new();
        for (ended, bytes, task) in ended {
            let one = of_one.entry(Arc::clone(task.owner())).or_default();
            let fits = |(count, sum): (usize, usize), most: (usize, usize)| count < most.0 && sum + bytes <= most.1;
            let fits_its_own = fits(*one, OF_ONE);
            if ended.elapsed() >= KEPT_FOR || !fits_its_own || !fits(of_all, OF_ALL) {
                all.remove(task.id());
                if !fits_its_own {
                    // Then there is no room for its older tasks, either.
                    one.0 = OF_ONE.0;
                }
                continue;
            }
            for sum in [one, &mut of_all] {
                *sum = (sum.0 + 1, sum.1 + bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;
    use crate::fault::fault;
    use serde_json::{Value, json};

    fn ended(tasks: &Tasks, owner: &str, bytes: usize) -> Arc<Task> {
        let task = Task::new(owner, "demo", Some("c".to_owned())).unwrap();
        tasks.show(&task);
        let text = format!("\"{}\"", "x".repeat(bytes));
        task.end(State::Completed, Ok(RawValue::from_string(text).unwrap()));
        tasks.tidy();
        task
    }

    #[test]
    fn what_a_caller_has_left_behind_goes_for_what_it_does_next_and_nothing_of_others_does() {
        let (ann, bob) = ("ann", "bob");
        let tasks = Tasks::default();
        let under_way = Task::new(ann, "demo", None).unwrap();
        tasks.show(&under_way);
        let of_bob = ended(&tasks, bob, 1);
        let first = ended(&tasks, ann, 1);
        for _ in 0..OF_ONE.0 {
            ended(&tasks, ann, 1);
        }
        let is_there = |who: &str, task: &Task| tasks.of(who, "demo", task.id()).is_some();
        assert!(!is_there(ann, &first), "the oldest has gone");
        assert!(is_there(ann, &under_way) && is_there(bob, &of_bob));
        assert_eq!(tasks.lock().len(), OF_ONE.0 + 2);
        for _ in 0..8 {
            ended(&tasks, ann, 900_000);
        }
        assert_eq!(tasks.lock().len(), 2 + OF_ONE.1 / 900_000, "by their bytes, too");
        // Neither another caller's, nor at another service.
        assert!(!is_there(ann, &of_bob) && tasks.of(bob, "other", of_bob.id()).is_none());
    }

    #[test]
    fn all_callers_together_leave_no_more_than_so_many() {
        let tasks = Tasks::default();
        for number in 0..OF_ALL.0 + 10 {
            ended(&tasks, &format!("agent-{number}"), 1);
        }
        assert_eq!(tasks.lock().len(), OF_ALL.0);
    }

    #[test]
    fn what_goes_wrong_with_a_task_is_in_its_bytes() {
        let (ann, tasks) = ("ann", Tasks::default());
        for _ in 0..8 {
            let task = Task::new(ann, "demo", None).unwrap();
            tasks.show(&task);
            task.end(State::Failed, Err(fault(-32_603, "METHOD_FAILED", "x".repeat(1 << 20))));
            tasks.tidy();
        }
        assert!((1..=2).contains(&tasks.lock().len()), "{} of 2 MiB each", tasks.lock().len());
    }

    #[test]
    fn a_page_ends_with_its_bytes_and_has_one_task_at_least() {
        let (ann, tasks) = ("ann", Tasks::default());
        for bytes in [1_000, 1_040_000, 600_000, 600_000, 1_000] {
            std::thread::sleep(Duration::from_millis(2));
            ended(&tasks, ann, bytes);
        }
        let (mut counts, mut token) = (Vec::new(), Value::from(""));
        while counts.is_empty() || token != "" {
            let filter = serde_json::from_value(json!({ "includeArtifacts": true, "pageToken": token })).unwrap();
            let page = tasks.list(ann, "demo", filter).unwrap();
            assert!(page.get().len() < PAGE_BYTES + 1_000);
            let page: Value = serde_json::from_str(page.get()).unwrap();
            assert_eq!(
                (&page["totalSize"], &page["pageSize"]),
                (&json!(5), &json!(page["tasks"].as_array().unwrap().len()))
            );
            counts.push(page["tasks"].as_array().unwrap().len());
            token = page["nextPageToken"].clone();
        }
        assert_eq!(counts, [2, 1, 2]);
    }

    #[test]
    fn lists_have_pages_the_newest_first() {
        let (ann, tasks) = ("ann", Tasks::default());
        let made: Vec<_> = (0..5)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                ended(&tasks, ann, 1)
            })
            .collect();
        let list = |filter: Value| -> Result<Value, Refusal> {
            let filter = serde_json::from_value(filter).unwrap();
            tasks.list(ann, "demo", filter).map(|list| serde_json::from_str(list.get()).unwrap())
        };
        let mut seen = Vec::new();
        let mut token = Value::from("");
        loop {
            let page = list(json!({ "pageSize": 2, "pageToken": token })).unwrap();
            assert_eq!(page["totalSize"], 5);
            seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()));
            assert!(page["tasks"][0].get("artifacts").is_none());
            token = page["nextPageToken"].clone();
            if token == "" {
                break;
            }
        }
        assert_eq!(seen, made.iter().rev().map(|task| task.id().to_owned()).collect::<Vec<_>>());
        let count = |filter: Value| list(filter).unwrap()["totalSize"].clone();
        assert_eq!(count(json!({ "status": "TASK_STATE_WORKING" })), 0);
        assert_eq!(count(json!({ "contextId": "c", "status": "TASK_STATE_UNSPECIFIED" })), 5);
        assert_eq!(count(json!({ "contextId": "d" })), 0);
        assert_eq!(count(json!({ "statusTimestampAfter": "2020-01-01T00:00:00.5Z" })), 5);
        assert_eq!(count(json!({ "statusTimestampAfter": "2999-01-01T00:00:00Z" })), 0);
        let whole = list(json!({ "includeArtifacts": true })).unwrap();
        assert_eq!(whole["tasks"][0]["artifacts"][0]["parts"][0]["text"], "x");
        for wrong in [json!({ "pageSize": 0 }), json!({ "pageSize": 101 }), json!({ "pageToken": "x" })] {
            assert_eq!(list(wrong).unwrap_err().code, -32_602);
        }
    }
}
