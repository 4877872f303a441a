//! What a replica says of the packages that it got.
//! Never trusted beyond the subject on which it was published.

use serde::{Deserialize, Serialize};

use super::comparison::Comparison;
use crate::auth::FollowerId;

/// What one replica says of the policies that are distributed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageReport {
    /// Who.
    #[serde(flatten)]
    pub id: FollowerId,
    /// The package in force; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<PackageId>,
    /// The newest package, if it is not in force because it cannot be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedPackage>,
    /// Why everything is denied, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denies: Option<String>,
    /// How long ago the bucket was seen, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ago_ms: Option<u64>,
    /// What is wrong with the bucket, or with what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Why it could not keep what is in force: after a restart, an older package could be shown to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
    /// What is compared with the policies in force, if anything is.
    #[serde(default)]
    pub shadow: ShadowReport,
}

/// What one replica says of the package that is compared with the one in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// That package, if there is one and it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<PackageId>,
    /// What came of it so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    /// The newest such package, if it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedPackage>,
    /// What is wrong with what the bucket holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Which package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageId {
    /// Its number.
    pub number: u64,
    /// The digest of what was signed.
    pub digest: String,
    /// The revision of its policies.
    pub revision: String,
}

/// A package that operators have signed and that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedPackage {
    /// Which.
    #[serde(flatten)]
    pub id: PackageId,
    /// Why, at most a few findings.
    pub reason: String,
}
