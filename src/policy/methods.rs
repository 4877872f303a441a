//! The methods that exist, so that a policy can be checked against them.
//! Never decides who may call them.

use std::collections::BTreeMap;

use crate::name::MethodName;

/// The registered methods: what a policy may speak about.
///
/// A service takes them from its router ([`Methods::new`] and [`Methods::with`]): then a policy that names another
/// method does not load. A tool that has no router starts from [`Methods::from_files`]: then the methods are those
/// that the policy files themselves declare with `[method."…"]`.
#[derive(Debug, Clone, Default)]
pub struct Methods {
    known: BTreeMap<MethodName, Method>,
    open: bool,
}

/// One method, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Method {
    pub(crate) description: Option<String>,
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

    /// Whether the method is registered.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The registered names, in order.
    pub fn names(&self) -> impl Iterator<Item = &MethodName> {
        self.known.keys()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Registers a method that a file declares, and tells whether that is allowed.
    pub(crate) fn declared_in_file(&mut self, name: &MethodName) -> Option<&mut Method> {
        if self.open { Some(self.known.entry(name.clone()).or_default()) } else { self.known.get_mut(name) }
    }
}

impl FromIterator<MethodName> for Methods {
    fn from_iter<I: IntoIterator<Item = MethodName>>(names: I) -> Self {
        names.into_iter().fold(Self::new(), Self::with)
    }
}
