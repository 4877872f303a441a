//! What a service publishes to everybody who has subscribed.
//! Never waits for a subscriber.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sealwire::{Router, Topic as Inner, WhenFull};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::answer::value;
use crate::runtime::Owned;

/// A subscription to everything that is published from then on.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct Topic {
    topic: Owned<Inner<Item>>,
    name: String,
    room: usize,
    when_full: WhenFull,
    about: Option<String>,
}

struct Item {
    key: String,
    value: Box<RawValue>,
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

#[pymethods]
impl Topic {
    /// At most `room` items wait for each subscriber; if `ends`, the subscription of a slower one ends, else it misses the oldest. Of a
    /// `keyed` topic, a newer item replaces a waiting one of the same key.
    #[new]
    fn new(name: String, room: usize, ends: bool, keyed: bool, about: Option<String>) -> Self {
        let topic = if keyed { Inner::by_key(|item: &Item| item.key.clone()) } else { Inner::new() };
        let when_full = if ends { WhenFull::End } else { WhenFull::DropOldest };
        Self { topic: Owned::new(topic), name, room, when_full, about }
    }

    /// Publishes JSON, an object or an array, to all subscribers.
    fn publish(&self, py: Python<'_>, item: &str, key: String) -> PyResult<()> {
        let value = value(item).map_err(PyValueError::new_err)?;
        let published = self.topic.get(py)?.publish(&Item { key, value });
        published.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// How many subscribe at the moment.
    fn subscribers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.topic.get(py)?.subscribers())
    }
}

impl Topic {
    pub(crate) fn register<S: Send + Sync + 'static>(&self, py: Python<'_>, router: Router<S>) -> PyResult<Router<S>> {
        let router = router.topic(&self.name, self.topic.get(py)?, self.room, self.when_full);
        let Some(about) = self.about.as_deref().filter(|_| router.names().any(|name| name == self.name)) else {
            return Ok(router);
        };
        Ok(router.describe(&self.name, sealwire::serve::Description::new(about)))
    }
}
