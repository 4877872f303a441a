//! Keys that are fetched from identity providers, and tokens as these write them: real messages to a real service, HTTPS to
//! a server of this machine that can be slow, dead or wrong.

mod fetching;
mod pages;
mod provider;
