//! What one replica reports of a package, as a line.
//! Never shows more of what a replica says than fits into one.

use sealwire::internal::auth::Stage;
use sealwire::internal::policy::{Comparison, PackageReport, RefusedPackage, ShadowReport};
use serde::Serialize;

use crate::revocation::report::who;
use crate::when;

#[derive(Debug, Serialize)]
pub(in crate::policy) struct Reported {
    #[serde(flatten)]
    pub(in crate::policy) report: PackageReport,
    /// After how many milliseconds the package was there, by the operator's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after_ms: Option<u64>,
    /// Whether it has said anything since the package was written, or since it was asked.
    pub(in crate::policy) answered: bool,
    /// As it came.
    #[serde(skip)]
    pub(super) bytes: usize,
}

/// How many characters are shown of what a replica says of itself.
const PROBLEM: usize = 1_200;

/// Whether a replica has the package of this digest: in force, or beside what is in force. No digest is that of none.
pub(super) fn has(report: &PackageReport, stage: Stage, digest: &str) -> bool {
    let package = match stage {
        Stage::Active => &report.active,
        Stage::Shadow => &report.shadow.package,
    };
    package.as_ref().map_or("", |package| &package.digest) == digest
}

impl Reported {
    pub(in crate::policy) fn has(&self, stage: Stage, digest: &str) -> bool {
        has(&self.report, stage, digest)
    }

    pub(super) fn refusal(&self, stage: Stage, digest: &str) -> Option<&RefusedPackage> {
        let refused = match stage {
            Stage::Active => &self.report.refused,
            Stage::Shadow => &self.report.shadow.refused,
        };
        refused.as_ref().filter(|refused| refused.id.digest == digest)
    }

    pub(super) fn line(&self, stage: Stage, digest: &str) -> String {
        let PackageReport { id, problem, unkept, shadow, .. } = &self.report;
        let (who, instance) = (who(id.role, &id.name), &id.instance);
        let state = match stage {
            Stage::Active => self.in_force(digest),
            Stage::Shadow => self.compared(digest),
        };
        let unkept = unkept.as_ref().map(|unkept| format!("NOT KEPT for its next start: {unkept}"));
        let problems = match stage {
            Stage::Active => problem.iter().chain(&unkept),
            Stage::Shadow => shadow.problem.iter().chain(&None),
        };
        let problem = problems.map(|problem| format!(", {}", clean(problem))).collect::<String>();
        format!("{who} {instance}  {state}{problem}")
    }

    fn in_force(&self, digest: &str) -> String {
        let PackageReport { active, denies, .. } = &self.report;
        let has = match (active, denies) {
            (Some(active), _) => format!("package {} ({})", active.number, clean(&active.revision)),
            (None, Some(why)) => format!("nothing, and denies everything: {}", clean(why)),
            (None, None) => "the policies of its folder".to_owned(),
        };
        match (self.after_ms, self.refusal(Stage::Active, digest)) {
            (_, Some(refused)) => format!("CANNOT USE IT, and goes on with {has}: {}", clean(&refused.reason)),
            (Some(ms), None) => format!("in force after {ms} ms"),
            (None, None) if self.has(Stage::Active, digest) => "in force".to_owned(),
            (None, None) if self.answered => format!("NOT IN FORCE: it has {has}"),
            (None, None) => format!("DID NOT ANSWER: it had {has}"),
        }
    }

    fn compared(&self, digest: &str) -> String {
        let ShadowReport { package, comparison, .. } = &self.report.shadow;
        let has = match package {
            Some(package) => format!("compares shadow package {} ({})", package.number, clean(&package.revision)),
            None => "compares nothing".to_owned(),
        };
        match (self.refusal(Stage::Shadow, digest), comparison) {
            (Some(refused), _) => format!("CANNOT USE IT: {}", clean(&refused.reason)),
            (None, _) if !self.answered => format!("DID NOT ANSWER: it {}", has.replacen("compares", "compared", 1)),
            (None, Some(comparison)) if self.has(Stage::Shadow, digest) => told(comparison),
            (None, None) if self.has(Stage::Shadow, digest) => "compares nothing any more".to_owned(),
            (None, _) => format!("DOES NOT COMPARE IT: it {has}"),
        }
    }
}

fn told(comparison: &Comparison) -> String {
    let Comparison { against, since_ms, compared, skipped, ended, .. } = comparison;
    let since = when::absolute(since_ms / 1_000);
    let skipped = if *skipped > 0 { format!(", {skipped} not compared") } else { String::new() };
    let ended = ended.as_ref().map(|why| format!(", ENDED: {}", clean(why))).unwrap_or_default();
    let differ = comparison.differ();
    format!("{compared} calls compared with {} since {since}, {differ} differ{skipped}{ended}", clean(against))
}

/// What a replica says, as one line of bounded length.
pub(in crate::policy) fn clean(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).take(PROBLEM).collect()
}
