//! The methods that exist and their parameters, so that a policy can be checked against them.
//! Never decides who may call them.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::location::Located;
use super::params::Param;
use super::pattern::Pattern;
use crate::name::MethodName;

/// The registered methods: what a policy may name.
///
/// A service takes them from its router ([`Methods::new`] and [`Methods::with`]): a policy that names another method
/// then does not load. A tool that has no router starts from [`Methods::from_files`]: the methods are then those that
/// the policy files themselves declare with `[method."…"]`.
///
/// ```
/// use sealwire::MethodName;
/// use sealwire::decide::{Methods, Param};
///
/// let transfer = MethodName::new("bank/transfer")?;
/// let methods = Methods::new().with(MethodName::new("math/add")?).with_params(
///     transfer,
///     [Param::string("to"), Param::integer("amount"), Param::string("note").optional()],
/// );
/// assert!(methods.contains("math/add"));
/// # Ok::<(), sealwire::errors::NameError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Methods {
    known: BTreeMap<MethodName, Method>,
    /// Files may add methods.
    pub(crate) open: bool,
    /// Some method runs only once its decision is on disk.
    records_before: bool,
}

/// The methods that need no rule, since they tell each caller only what the rules say about that caller, or what became of its own calls.
/// Rules may deny them.
pub(crate) const OPEN_TO_ALL: [&str; 3] = ["rpc.discover", "rpc.task", "rpc.task.cancel"];

/// One method, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Method {
    pub(crate) description: Option<String>,
    /// Declared by the service's author.
    coded: Option<Vec<Param>>,
    /// Declared in a policy file.
    filed: Option<Vec<Param>>,
    /// Known from a policy file only.
    from_file: bool,
    /// Its parameters have names and no positions.
    by_name: bool,
    /// It runs only once its decision is on disk.
    records_before: bool,
}

impl Method {
    /// Its parameters by position, if they are declared.
    pub(crate) fn params(&self) -> Option<&[Param]> {
        self.coded.as_deref().or(self.filed.as_deref())
    }

    /// Takes over the parameters from a file. `false` if the author declared others.
    pub(crate) fn declare(&mut self, params: Vec<Param>) -> bool {
        let agrees = self.coded.as_ref().is_none_or(|known| match self.by_name {
            false => *known == params,
            true => known.len() == params.len() && known.iter().all(|param| params.contains(param)),
        });
        self.filed = Some(params);
        agrees
    }
}

impl Methods {
    /// No methods yet, and files may not add any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// No methods yet; every method that a policy file declares counts as registered.
    #[must_use]
    pub fn from_files() -> Self {
        Self { open: true, ..Self::default() }
    }

    /// Registers a method. Its parameters may be declared in the policy files.
    #[must_use]
    pub fn with(mut self, name: MethodName) -> Self {
        self.known.entry(name).or_default();
        self
    }

    /// Registers a method with its parameters, in the order of their positions. A policy file that declares others for
    /// it does not load.
    #[must_use]
    pub fn with_params(mut self, name: MethodName, params: impl IntoIterator<Item = Param>) -> Self {
        self.known.entry(name).or_default().coded = Some(params.into_iter().collect());
        self
    }

    /// The same for a method that takes its parameters by name only: files may declare them in any order.
    #[must_use]
    pub fn with_named_params(mut self, name: MethodName, params: impl IntoIterator<Item = Param>) -> Self {
        let method = self.known.entry(name).or_default();
        (method.coded, method.by_name) = (Some(params.into_iter().collect()), true);
        self
    }

    /// Whether the method is registered.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The registered names, in order.
    pub fn names(&self) -> impl Iterator<Item = &MethodName> {
        self.known.keys()
    }

    /// The declared parameters of a method by position, if it is registered and they are declared.
    #[must_use]
    pub fn params(&self, name: &str) -> Option<&[Param]> {
        self.known.get(name)?.params()
    }

    /// The same with what the record keeps of each, which only files say; a method with parameters by name has them in any order.
    pub(crate) fn recorded_params(&self, name: &str) -> Option<&[Param]> {
        let method = self.known.get(name)?;
        method.filed.as_deref().or(method.coded.as_deref())
    }

    /// The method runs only once its decision is on disk.
    pub(crate) fn record_before(&mut self, name: &MethodName) {
        if let Some(method) = self.known.get_mut(name) {
            (method.records_before, self.records_before) = (true, true);
        }
    }

    /// Whether the method runs only once its decision is on disk.
    pub(crate) fn is_recorded_before(&self, name: &str) -> bool {
        self.records_before && self.known.get(name).is_some_and(|method| method.records_before)
    }

    /// What is known without any policy file: every folder is checked against this, however often it is read.
    pub(crate) fn without_files(&self) -> Self {
        let known = self.known.iter().filter(|(_, method)| !method.from_file);
        let known = known.map(|(name, method)| {
            let (coded, by_name) = (method.coded.clone(), method.by_name);
            (name.clone(), Method { coded, by_name, ..Method::default() })
        });
        Self { known: known.collect(), open: self.open, records_before: false }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&MethodName, &Method)> {
        self.known.iter()
    }

    /// The methods that a pattern matches, in the order of their names; the number of other methods does not matter.
    pub(crate) fn matching<'m>(&'m self, pattern: &'m Pattern) -> impl Iterator<Item = (&'m MethodName, &'m Method)> {
        let from = match pattern {
            Pattern::All => Bound::Unbounded,
            Pattern::Below(prefix) => Bound::Excluded(prefix.as_str()),
            Pattern::Exact(name) => Bound::Included(name.as_str()),
        };
        let names = self.known.range::<str, _>((from, Bound::Unbounded));
        names.take_while(|(name, _)| pattern.matches(name.as_str()))
    }

    /// The methods that any of these patterns matches.
    pub(crate) fn matching_any<'m>(&'m self, patterns: &'m [Located<Pattern>]) -> BTreeMap<&'m MethodName, &'m Method> {
        patterns.iter().flat_map(|pattern| self.matching(&pattern.value)).collect()
    }

    /// A method that a file declares; `None` if it is not registered and files may not register any.
    pub(crate) fn declared_in_file(&mut self, name: &MethodName) -> Option<&mut Method> {
        if !self.open {
            return self.known.get_mut(name);
        }
        Some(self.known.entry(name.clone()).or_insert_with(|| Method { from_file: true, ..Method::default() }))
    }
}

impl FromIterator<MethodName> for Methods {
    fn from_iter<I: IntoIterator<Item = MethodName>>(names: I) -> Self {
        names.into_iter().fold(Self::new(), Self::with)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_agrees_by_position_or_where_there_is_none_by_name() {
        let name = MethodName::new("m").unwrap();
        let (a, b) = (Param::string("a"), Param::integer("b").optional());
        let by_position = Methods::new().with_params(name.clone(), [a.clone(), b.clone()]);
        let by_name = Methods::new().with_named_params(name.clone(), [a.clone(), b.clone()]);
        for (filed, in_order, in_any) in [
            (vec![a.clone(), b.clone()], true, true),
            (vec![b.clone(), a.clone()], false, true),
            (vec![a.clone()], false, false),
            (vec![a.clone(), a.clone()], false, false),
            (vec![a.clone(), b.clone(), a.clone()], false, false),
            (vec![a.clone(), Param::integer("b")], false, false),
            (vec![a.clone(), Param::string("b").optional()], false, false),
            (vec![], false, false),
        ] {
            let agrees = |methods: &Methods| {
                // As a policy that is read again does.
                methods.without_files().declared_in_file(&name).unwrap().declare(filed.clone())
            };
            assert_eq!((agrees(&by_position), agrees(&by_name)), (in_order, in_any), "{filed:?}");
        }
    }
}
