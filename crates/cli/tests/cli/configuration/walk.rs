//! What serde reads for a type, found by deserializing it from nothing: every member with its kind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Paths such as `tokens.issuer[].typ[]`, and the kind of value there.
pub(crate) type Members = BTreeMap<String, String>;

pub(crate) fn members<'de, T: Deserialize<'de>>() -> Members {
    let found = Rc::default();
    T::deserialize(Walk { path: String::new(), found: Rc::clone(&found) }).map(drop).unwrap();
    found.take()
}

struct Walk {
    path: String,
    found: Rc<RefCell<Members>>,
}

impl Walk {
    fn found(&self, kind: &str) {
        self.found.borrow_mut().insert(self.path.clone(), kind.to_owned());
    }

    fn below(&self, path: &str) -> Self {
        Self { path: format!("{}{path}", self.path), found: Rc::clone(&self.found) }
    }
}

impl<'de> Deserializer<'de> for Walk {
    type Error = Error;

    /// Only claims are read like this: from a text or a list.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.found("claim");
        visitor.visit_str("x")
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.found("boolean");
        visitor.visit_bool(true)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.found("integer");
        visitor.visit_u64(1)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.found("number");
        visitor.visit_f64(1.0)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_u64(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.found("string");
        visitor.visit_str(if self.path.ends_with("listen") { "127.0.0.1:1" } else { "x" })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Once(Some(self.below("[]"))))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { names: &["*"], walk: self })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { names, walk: self })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.found(&format!("{variants:?}"));
        visitor.visit_enum(variants[0].into_deserializer())
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
        ignored_any
    }
}

struct Once(Option<Walk>);

impl<'de> SeqAccess<'de> for Once {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|walk| seed.deserialize(walk)).transpose()
    }
}

struct Fields {
    names: &'static [&'static str],
    walk: Walk,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.first() else { return Ok(None) };
        // The key of a map may be a claim, which `*` is not.
        let name: StrDeserializer<'_, Error> = if *name == "*" { "x" } else { name }.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, rest) = self.names.split_first().unwrap();
        self.names = rest;
        let dot = if self.walk.path.is_empty() { "" } else { "." };
        seed.deserialize(self.walk.below(&format!("{dot}{name}")))
    }
}
