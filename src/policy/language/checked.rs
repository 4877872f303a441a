//! What a folder says, once it is checked.
//! Never holds only a part of a folder.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::model::{Approval, Attributes, Budget, ByPrincipal, Declarations, Methods, Revision, Rule};

/// The roles that files grant, by principal.
pub(crate) type Granted = ByPrincipal<BTreeSet<String>>;

/// Everything that a folder says, checked: all decisions rest on it.
#[derive(Debug)]
pub(crate) struct CheckedPolicy {
    pub(crate) revision: Revision,
    pub(crate) methods: Methods,
    pub(crate) declarations: Declarations,
    pub(crate) attributes: Attributes,
    pub(crate) granted: Granted,
    /// By name.
    pub(crate) approvals: BTreeMap<String, Approval>,
    /// By name.
    pub(crate) budgets: BTreeMap<String, Budget>,
    /// Ordered by file and line; everything else refers to them by position.
    pub(crate) rules: Vec<Rule>,
}
