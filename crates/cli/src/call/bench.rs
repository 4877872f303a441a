//! `sealwire bench`: makes calls as fast as they are answered, or at a fixed rate, and measures them.
//! Never counts a call as successful that has no verified result.

mod options;
mod summary;

use std::path::Path;

use futures_util::StreamExt as _;
use sealwire::{BusConfig, Client, ClientError, Credentials};
use sealwire_lab::bench::{BARE_SUBJECTS, Bare, BenchError, Plan, Shape, Target};
use serde_json::value::RawValue;

use super::{DEADLINE, Options, exit, failed, unconnected};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::login;
use crate::output::Output;
use crate::runtime::Signals;
use options::Baseline;
pub(crate) use options::Bench;
use summary::Summary;

/// What `--payload` replaces.
const PAYLOAD: &str = "\"{payload}\"";
/// The broker login of bare requests, next to the credentials of `sealwire dev`.
pub(crate) const BARE_LOGIN: &str = "bench.nats.json";

impl Bench {
    pub(crate) fn run(mut self, out: &Output) -> Result<Exit, Failure> {
        let params = self.words.params("bench")?;
        let params = self.filled(params)?;
        let options = Options { creds: self.creds.take(), deadline: self.deadline, wait: self.wait, idempotent: false };
        let creds = options.creds.clone();
        let service = self.words.service.clone();
        // Report mistakes before anything is sent.
        self.plan(super::credentials(creds.as_deref())?, params.clone(), None).check().or_fail(Exit::Usage)?;
        let measured =
            options.run_until_stopped(&service, out, async |client: Client, signals: Signals, credentials| {
                let first = signals.unless_stopped(self.first(&options, &client, &params, &credentials)).await;
                let result_bytes = first.ok_or_else(stopped)??;
                let bare = match self.against {
                    Some(Baseline::Bare) => {
                        Some(Bare { bus: self.login(creds.as_deref(), &credentials)?, result_bytes })
                    }
                    None => None,
                };
                let plan = self.plan(credentials.clone(), params.clone(), bare);
                let mut bar = out.bar();
                let report = sealwire_lab::bench::run(plan, signals.stop(), |progress| {
                    bar.show(progress.share, Some(1.0), &format!("{} calls", progress.done));
                });
                let report = report.await;
                bar.clear();
                report.map_err(|error| self.unmeasured(error, &credentials)).map(|report| (report, credentials))
            })?;
        let (report, credentials) = measured;
        let told = Summary::new(&self, &credentials, &report);
        out.tell(&told.json(), || told.text())?;
        Ok(told.exit())
    }

    /// The parameters with the payload filled in.
    fn filled(&self, params: Option<Box<RawValue>>) -> Result<Option<Box<RawValue>>, Failure> {
        let Some(bytes) = self.payload else { return Ok(params) };
        let text = params.as_ref().map_or("", |params| params.get());
        if !text.contains(PAYLOAD) {
            let failure = Failure::new(Exit::Usage, "--payload needs a placeholder in the parameters");
            return Err(failure.help("write \"{payload}\" where it belongs, for example '[\"{payload}\"]'"));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let text = text.replace(PAYLOAD, &format!("\"{}\"", "x".repeat(bytes)));
        RawValue::from_string(text).map(Some).or_fail(Exit::Bug)
    }

    /// Makes one call, to find out whether there is anything to measure, and how large the result is. Errors that the service
    /// answers with are counted later.
    async fn first(
        &self,
        options: &Options,
        client: &Client,
        params: &Option<Box<RawValue>>,
        credentials: &Credentials,
    ) -> Result<usize, Failure> {
        let (service, method) = (&self.words.service, &self.words.method);
        let request = self.words.request(options.request(client, service));
        let answer = if self.stream {
            let mut stream = request.stream::<Box<RawValue>>(method, params);
            // The stream yields an error only once, here.
            let mut error = None;
            while let Some(item) = stream.next().await {
                error = item.err();
            }
            match error {
                Some(error) => Err(error),
                None => stream.finish::<Box<RawValue>>().await,
            }
        } else {
            request.call::<Box<RawValue>>(method, params).await
        };
        match answer {
            Ok(result) => Ok(result.get().len()),
            Err(error) if matches!(exit(&error), Exit::Denied | Exit::Remote | Exit::Timeout) => Ok(0),
            Err(error) => Err(failed(error, credentials, service).await),
        }
    }

    /// The broker login of bare requests.
    fn login(&self, creds: Option<&Path>, credentials: &Credentials) -> Result<BusConfig, Failure> {
        let beside = creds.and_then(Path::parent).map(|folder| folder.join(BARE_LOGIN)).filter(|file| file.exists());
        let Some(file) = self.bare_login.clone().or(beside) else { return Ok(credentials.bus()) };
        login::read(&file)
    }

    fn plan(&self, credentials: Credentials, params: Option<Box<RawValue>>, bare: Option<Bare>) -> Plan {
        let shape = match (self.batch, self.stream) {
            (Some(calls), _) => Shape::Batch(calls),
            (None, true) => Shape::Stream,
            (None, false) => Shape::Single,
        };
        let target = Target {
            credentials,
            service: self.words.service.clone(),
            method: self.words.method.clone(),
            params,
            deadline: self.deadline.unwrap_or(DEADLINE),
            on_method_subject: self.words.method_subject,
            shape,
        };
        let Self { connections, duration, warmup, .. } = *self;
        Plan { target, load: self.load(), connections, warmup, duration, bare, watched: self.pids.clone() }
    }

    fn unmeasured(&self, error: BenchError, credentials: &Credentials) -> Failure {
        match error {
            BenchError::Client(error @ ClientError::Connect(_)) => unconnected(error, credentials),
            BenchError::Client(error) => super::failure(error),
            BenchError::Stopped => stopped(),
            BenchError::BareForbidden(_) => Failure::of(Exit::Transport, &error).help(format!(
                "bare requests need a broker user that may publish and subscribe to `{BARE_SUBJECTS}`, and agents may not: name its \
                 login with --bare-login"
            )),
            BenchError::Bare(_) => Failure::of(Exit::Transport, &error),
            BenchError::Plan(_) => Failure::of(Exit::Usage, &error),
            BenchError::NoProcess { .. } | BenchError::Thread(_) => Failure::of(Exit::Input, &error),
            _ => Failure::of(Exit::Bug, &error),
        }
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Interrupted, "stopped by a signal, before anything was measured")
}
