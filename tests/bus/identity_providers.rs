//! Keys fetched from identity providers, and tokens as these providers write them: real messages to a real service, and HTTPS
//! to a local server that can be slow, dead or wrong.

mod fetching;
mod pages;
mod provider;
