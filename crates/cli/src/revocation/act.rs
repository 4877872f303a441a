//! One act of an operator: the next list, signed, written, and waited for.
//! Never says that anything holds somewhere unless it was reported from there.

use std::path::Path;

use sealwire::internal::auth::{Bucket, BucketError, OperatorKey, RevocationList, SignedList, SignedListError};
use sealwire::{Clock as _, SystemClock};
use serde_json::json;
use tokio::time::Instant;

use super::brokers::Closed;
use super::desk::{Desk, Latest, failed};
use super::report::Reports;
use super::{Signing, Waiting};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::write_public;
use crate::output::Output;
use crate::runtime::block_on;

/// Makes the next list by `change`, which gets the latest one and the time in milliseconds, and puts it in force.
pub(super) fn act(
    signing: &Signing,
    out: &Output,
    change: impl Fn(&RevocationList, u64) -> Result<RevocationList, Failure>,
) -> Result<Exit, Failure> {
    let desk = Desk::open(&signing.config)?;
    let keys = desk.keys(&signing.keys)?;
    block_on(async {
        let mut bucket = desk.connect().await?;
        let next = |latest: &Latest| -> Result<SignedList, Failure> {
            let list = change(&latest.list, SystemClock.now_ms())?;
            Ok(sign(SignedList::new(&list), &keys))
        };
        let latest = desk.latest(&mut bucket).await?;
        if let Some(problem) = &latest.problem {
            out.warning(problem);
        }
        let signed = next(&latest)?;
        if let Some(path) = &signing.draft {
            return draft(&desk, path, &signed, out);
        }
        enough(&desk, &signed)?;
        put(&desk, &mut bucket, (signed, latest), next, &signing.waiting, out).await
    })?
}

/// The list, signed with these keys, too.
pub(super) fn sign(list: SignedList, keys: &[OperatorKey]) -> SignedList {
    keys.iter().fold(list, SignedList::signed)
}

/// Writes a list that another operator is to sign, too.
pub(super) fn draft(desk: &Desk, path: &Path, signed: &SignedList, out: &Output) -> Result<Exit, Failure> {
    write_public(path, &signed.to_text().or_fail(Exit::Input)?)?;
    let shown = path.display().to_string();
    out.result(&json!({ "draft": shown, "signers": signed.signers(&desk.operators) }), || {
        format!(
            "wrote {shown}: nothing is in force yet\nAnother operator: sealwire revocations sign {shown} --key FILE"
        )
    })?;
    Ok(Exit::Ok)
}

/// Whether enough operators have signed.
pub(super) fn enough(desk: &Desk, signed: &SignedList) -> Result<(), Failure> {
    desk.operators.check(signed, &desk.environment).map(drop).map_err(|error| {
        let failure = Failure::of(Exit::Input, &error);
        match error {
            SignedListError::Signatures(_) => {
                failure.help("give every key with `--key`, or let another operator sign: `--draft FILE`")
            }
            _ => failure,
        }
    })
}

/// Writes a list on top of the one that it was made from, and waits until all that report have it. `again` makes it anew if somebody else
/// was quicker.
pub(super) async fn put(
    desk: &Desk,
    bucket: &mut Bucket,
    (mut signed, mut latest): (SignedList, Latest),
    again: impl Fn(&Latest) -> Result<SignedList, Failure>,
    waiting: &Waiting,
    out: &Output,
) -> Result<Exit, Failure> {
    let mut reports = Reports::listen(bucket).await?;
    let mut attempt = 0;
    let (text, began) = loop {
        attempt += 1;
        let text = signed.to_text().or_fail(Exit::Input)?;
        // Somebody who writes all the time must not hold up a revocation: in the end, it is written over whatever is there.
        let over = (attempt <= ATTEMPTS).then_some(latest.sequence.unwrap_or(0));
        let began = Instant::now();
        match bucket.write(&text, over).await {
            Ok(_) => break (text, began),
            Err(BucketError::Overtaken) => {
                latest = desk.latest(bucket).await?;
                signed = again(&latest)?;
            }
            Err(error) => return Err(failed(&error)),
        }
    };
    desk.keep(&text)?;
    let list = signed.unverified().or_fail(Exit::Bug)?;
    let (revoked, restored) = (list.beyond(&latest.list), latest.list.beyond(&list));
    let called = async {
        match &desk.system {
            Some(system) if !revoked.is_empty() => Some(system.call(waiting.wait).await),
            _ => None,
        }
    };
    let (waited, called) = tokio::join!(reports.wait(bucket, list.number, began, waiting), called);
    waited?;
    // Now, since by the reports nobody lets them in again.
    let closed = match called {
        None => None,
        Some(Ok(brokers)) => {
            let closed = brokers.close(&list, began, waiting.wait).await;
            Some(closed.unwrap_or_else(|failure| Closed::none(&failure)))
        }
        Some(Err(failure)) => Some(Closed::none(&failure)),
    };
    reports.tell(out, &list, (&revoked, &restored), closed.as_ref(), waiting)
}

/// How often a list is made anew because somebody else was quicker.
const ATTEMPTS: u32 = 20;
