//! A whole service program in one call: configuration and methods in, until a signal ends it.
//! Never reads a key of the configuration.

use std::future::Future;
use std::io;

use crate::config::Config;
use crate::error::Error;
#[cfg(feature = "otel")]
use crate::export::Traces;
use crate::service::{Router, Running};
#[cfg(feature = "metrics")]
use crate::telemetry::Telemetry;

impl Config {
    /// Serves `methods` under this configuration until SIGINT (Ctrl-C) or SIGTERM, then drains: finishes what was accepted, sends the
    /// answers, and leaves. On systems without SIGTERM, until Ctrl-C.
    ///
    /// With the feature `otel`, it also sends traces where `[telemetry] otlp` or `OTEL_EXPORTER_OTLP_ENDPOINT` says.
    ///
    /// For layers, a sink for decisions or the state of the service, there is [`Config::builder`].
    ///
    /// # Errors
    /// [`Error`]: the configuration, its files or the methods do not fit together (the operator or the author is to blame, and the
    /// message says what to do); the broker or another replica prevents serving; accepted work did not finish in time. A broker
    /// that is away is no error: the service waits for it.
    ///
    /// Cancel safety: dropping the future stops the service at once, without draining.
    pub async fn serve<S: Send + Sync + 'static>(self, methods: Router<S>) -> Result<(), Error> {
        let signal = stop_signal().map_err(Error::Signals)?;
        self.serve_until(methods, signal).await
    }

    /// As [`Config::serve`], until `stop` completes. No signal is listened for.
    ///
    /// # Errors
    /// As for [`Config::serve`].
    ///
    /// Cancel safety: as for [`Config::serve`].
    pub async fn serve_until<S: Send + Sync + 'static>(
        self,
        methods: Router<S>,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let mut stop = std::pin::pin!(stop);
        // Before anything that may take long, so that `/livez` is there.
        #[cfg(feature = "metrics")]
        let telemetry = Telemetry::start(&self.telemetry).await?;
        #[cfg(feature = "otel")]
        let traces = self.traces()?.map(Traces::start);
        // A shared replay guard waits for the broker here.
        let (builder, options) = tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            built = self.builder() => built?,
        };
        let service = builder.methods(methods).build()?;
        #[cfg(feature = "otel")]
        if let Some(traces) = &traces {
            service.trace(traces.tracer());
            #[cfg(feature = "metrics")]
            if let Some(telemetry) = &telemetry {
                telemetry.report(traces);
            }
        }
        let started = |running: Running| {
            #[cfg(feature = "metrics")]
            if let Some(telemetry) = &telemetry {
                telemetry.show(&service, running);
            }
            #[cfg(not(feature = "metrics"))]
            let _ = running;
        };
        let served = service.serve(&self.nats, options, started, stop).await;
        #[cfg(feature = "otel")]
        if let Some(traces) = traces {
            traces.close().await;
        }
        Ok(served?)
    }
}

/// Completes at the first signal that asks the process to end. Listens from now on.
#[cfg(unix)]
fn stop_signal() -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on Unix, where listening can fail at once")]
fn stop_signal() -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}
