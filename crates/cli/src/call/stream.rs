//! `sealwire call --stream` and `sealwire watch`: print what a method sends while it runs, as it arrives.
//! Never leaves a call running at the service when told to stop.

use std::future::{Future, pending};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use clap::Args;
use futures_util::{Stream, StreamExt as _};
use sealwire::internal::client::MessageId;
use sealwire::internal::rpc::Request;
use sealwire::{CallStream, Client, ClientError, RequestBuilder, Subscription};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::outcome::shown;
use super::{Options, Words, ended_by_signal, failed, stopped, unsent};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::progress::Bar;
use crate::runtime::Signals;
use crate::term;
use crate::when;

/// Print what a service pushes, a line for each item, until Ctrl-C or until the service ends it
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire watch --creds planner.creds.json clock clock/ticks
  sealwire watch clock clock/ticks '{\"every_s\": 5}' --json | jq .item
  sealwire watch clock clock/ticks --times 1    # wait for the next one")]
pub(crate) struct Watch {
    /// The agent's credentials file, as created by `sealwire keys new-agent`
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// How long to wait for a service that is not listening yet
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    words: Words,
    /// How long the service goes on after it last heard from this command, 2s to 10m; the command renews the lease itself
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    lease: Duration,
    /// Stop after this many items
    #[arg(long, value_name = "N")]
    times: Option<u64>,
}

impl Watch {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let params = self.words.params("watch")?;
        let Self { creds, wait, words, lease, times } = self;
        let options = Options { creds, deadline: None, wait, idempotent: false };
        let id = MessageId::default();
        let watched = options.run_until_stopped(&words.service, out, async |client: Client, signals, credentials| {
            let request =
                words.request(options.request(&client, &words.service)).lease(lease).relay().capture_id(&id).request();
            let (request, notes) = noted(request);
            let subscription = request.subscribe::<Box<RawValue>>(&words.method, &params);
            let mut printer = Printer::new(out, notes);
            match printer.print(subscription, &signals, times).await? {
                // The usual end.
                StreamEnd::Error(error) if stopped(&error, &signals).is_some() => Ok(Exit::Ok),
                StreamEnd::Error(error) => Err(failed(error, &credentials, &words.service).await),
                StreamEnd::Unsent | StreamEnd::Enough => Ok(Exit::Ok),
                StreamEnd::Silent => {
                    printer.out.note(&format!(
                        "the service has not confirmed that it has ended; it ends with the lease, after {} s at most",
                        lease.as_secs()
                    ));
                    Ok(Exit::Ok)
                }
                StreamEnd::Result(result) => {
                    printer.out.result(&Line::Result(&result), || shown(&result))?;
                    printer.out.note("the service has ended it");
                    Ok(Exit::Ok)
                }
            }
        });
        watched.map_err(|failure| words.explained(failure, &id))
    }
}

/// Calls a method, and prints the parts of its result as they arrive.
pub(super) async fn call(
    request: RequestBuilder,
    method: &str,
    params: &Option<Box<RawValue>>,
    out: &Output,
    signals: &Signals,
    told: impl AsyncFnOnce(ClientError) -> Failure,
) -> Result<Exit, Failure> {
    let (request, notes) = noted(request);
    let stream = request.stream::<Box<RawValue>>(method, params);
    let mut printer = Printer::new(out, notes);
    match printer.print(stream, signals, None).await? {
        StreamEnd::Error(error) => Err(match stopped(&error, signals) {
            Some(failure) => failure,
            None => told(error).await,
        }),
        StreamEnd::Unsent => Err(unsent()),
        StreamEnd::Silent => Err(ended_by_signal(false)),
        StreamEnd::Enough => Ok(Exit::Ok),
        StreamEnd::Result(result) => {
            printer.result(&result)?;
            Ok(Exit::Ok)
        }
    }
}

/// Waits for this, or for ever.
async fn over(cancelling: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match cancelling {
        Some(cancelling) => cancelling.await,
        None => pending().await,
    }
}

/// Routes notifications to the printer.
fn noted(request: RequestBuilder) -> (RequestBuilder, UnboundedReceiver<Request>) {
    // The call's window bounds it: no more of them come before these are printed.
    let (tell, told) = unbounded_channel();
    let request = request.on_notification(move |note| {
        // An error means that the command is ending and no longer prints.
        drop(tell.send(note));
    });
    (request, told)
}

/// One line for scripts.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Line<'a> {
    Item(&'a RawValue),
    Notification { method: &'a str, params: Option<&'a RawValue> },
    Result(&'a RawValue),
}

/// `rpc.progress`: how far a method has come.
#[derive(serde::Deserialize)]
struct Progress {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

enum StreamEnd {
    Result(Box<RawValue>),
    Error(ClientError),
    /// By a signal, before anything was sent.
    Unsent,
    /// By a signal, and the service has not said how.
    Silent,
    /// After as many items as were asked for.
    Enough,
}

/// What [`CallStream`] and [`Subscription`] have in common.
trait Parts: Stream<Item = Result<Box<RawValue>, ClientError>> + Unpin {
    async fn result(self) -> Result<Box<RawValue>, ClientError>;
    fn is_sent(&self) -> bool;
    fn cancelling(&self) -> impl Future<Output = ()> + Send + 'static;
    async fn stop(self) -> bool;
}

impl Parts for CallStream<Box<RawValue>> {
    async fn result(self) -> Result<Box<RawValue>, ClientError> {
        self.finish().await
    }
    fn is_sent(&self) -> bool {
        self.message_id().is_some()
    }
    fn cancelling(&self) -> impl Future<Output = ()> + Send + 'static {
        self.cancelling()
    }
    async fn stop(self) -> bool {
        self.cancel().await
    }
}

impl Parts for Subscription<Box<RawValue>> {
    async fn result(self) -> Result<Box<RawValue>, ClientError> {
        self.finish().await
    }
    fn is_sent(&self) -> bool {
        self.message_id().is_some()
    }
    fn cancelling(&self) -> impl Future<Output = ()> + Send + 'static {
        self.cancelling()
    }
    async fn stop(self) -> bool {
        self.cancel().await
    }
}

struct Printer<'o> {
    out: &'o Output,
    notes: UnboundedReceiver<Request>,
    bar: Bar,
    items: usize,
    /// All texts so far, if nothing else came and they are not too long: a result that repeats them is not printed again.
    text: Option<String>,
    /// Whether the last printed line is not finished yet.
    in_line: bool,
}

impl<'o> Printer<'o> {
    fn new(out: &'o Output, notes: UnboundedReceiver<Request>) -> Self {
        Self { out, notes, bar: out.bar(), items: 0, text: Some(String::new()), in_line: false }
    }

    /// Prints everything until the end. A signal has it cancelled at the service, whose end is the outcome, whatever it is
    /// (SPEC.md §25.4).
    async fn print(
        &mut self,
        mut parts: impl Parts,
        signals: &Signals,
        times: Option<u64>,
    ) -> Result<StreamEnd, Failure> {
        let mut left = times;
        let mut cancelling: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        loop {
            if left == Some(0) {
                self.end_line()?;
                parts.stop().await;
                return Ok(StreamEnd::Enough);
            }
            let item = tokio::select! {
                biased;
                () = signals.stop(), if cancelling.is_none() => {
                    if !parts.is_sent() {
                        self.end_line()?;
                        return Ok(StreamEnd::Unsent);
                    }
                    cancelling = Some(Box::pin(parts.cancelling()));
                    continue;
                }
                Some(note) = self.notes.recv() => {
                    self.note(&note)?;
                    continue;
                }
                item = parts.next() => item,
                () = over(&mut cancelling) => {
                    self.end_line()?;
                    return Ok(StreamEnd::Silent);
                }
            };
            // These notifications came before the item.
            while let Ok(note) = self.notes.try_recv() {
                self.note(&note)?;
            }
            match item {
                Some(Ok(item)) => self.item(&item)?,
                Some(Err(error)) => {
                    self.end_line()?;
                    return Ok(StreamEnd::Error(error));
                }
                None => {
                    self.end_line()?;
                    return Ok(parts.result().await.map_or_else(StreamEnd::Error, StreamEnd::Result));
                }
            }
            left = left.map(|left| left.saturating_sub(1));
        }
    }

    /// Prints texts directly after each other, since models write them in pieces of words; anything else gets its own line.
    fn item(&mut self, item: &RawValue) -> Result<(), Failure> {
        self.items += 1;
        if self.out.is_json() {
            return self.out.json(&Line::Item(item));
        }
        self.bar.clear();
        let Ok(text) = serde_json::from_str::<String>(item.get()) else {
            self.end_line()?;
            self.text = None;
            return self.out.print(&term::safe_json(item.get()));
        };
        self.text = self.text.take().filter(|all| all.len() + text.len() <= MOST_TEXT).map(|all| all + &text);
        if !text.is_empty() {
            self.in_line = !text.ends_with('\n');
        }
        self.out.part(&term::safe_text(&text))
    }

    fn note(&mut self, note: &Request) -> Result<(), Failure> {
        let params = note.params.as_ref().map(|params| params.raw());
        if self.out.is_json() {
            return self.out.json(&Line::Notification { method: &note.method, params });
        }
        if note.method == "rpc.progress" {
            let progress = params.and_then(|params| serde_json::from_str::<Progress>(params.get()).ok());
            // A bar would overwrite an unfinished line.
            if let Some(Progress { progress, total, message }) = progress.filter(|_| !self.in_line) {
                self.bar.show(progress, total, message.as_deref().unwrap_or_default());
            }
            return Ok(());
        }
        self.bar.clear();
        let params = params.map(|params| format!(" {}", term::safe_json(params.get()))).unwrap_or_default();
        self.out.note(&format!("{}{params}", note.method));
        Ok(())
    }

    /// Prints the result, unless it only repeats what was printed.
    fn result(&mut self, result: &RawValue) -> Result<(), Failure> {
        self.bar.clear();
        let text = serde_json::from_str::<String>(result.get()).ok();
        let is_said = self.items > 0 && (result.get() == "null" || (text.is_some() && text == self.text));
        if is_said && !self.out.is_json() {
            return Ok(());
        }
        self.out.result(&Line::Result(result), || shown(result))
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        self.bar.clear();
        if std::mem::take(&mut self.in_line) { self.out.part("\n") } else { Ok(()) }
    }
}

/// If the texts are longer, the result is printed as well. 16 MiB is the default limit of a result.
const MOST_TEXT: usize = 16 << 20;
