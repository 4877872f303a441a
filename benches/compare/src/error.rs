//! What ends a measurement.

use std::error::Error;

pub type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;
