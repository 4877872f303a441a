//! JSON Schemas of policy files and of tables of expected decisions, for editors.
//! Never the judge of a file: that is `PolicySet::load`, which knows more than a schema can express.

use serde_json::{Map, Value, json};

use crate::policy::engine::Reason;
use crate::policy::language::ALGORITHMS;
use crate::policy::model::{Involved, ParamType};

/// The schema of a TOML policy file, for editors that complete and check as you type.
#[must_use]
pub fn json_schema() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Sealwire policy file",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "role": tables("A role, carried by tokens or granted to agents.", object([
                ("description", text("What holders of the role do.")),
                ("allow", patterns("Methods that holders may call.")),
                ("deny", patterns("Methods that holders may not call, whatever other rules say.")),
                ("delegated", choice(&["never", "also"], "Whether `allow` is also for calls on behalf of others. `deny` always is.")),
                ("from", choice(&["anywhere", "files", "token"], "Where the role may come from.")),
                ("includes", strings("Roles that whoever has this one has too.")),
            ])),
            "agent": tables("An agent.", object([
                ("description", text("What the agent does.")),
                ("roles", strings("Roles granted beside those in its token.")),
                ("allow", patterns("Methods that it may call.")),
                ("deny", patterns("Methods that it may not call, whatever other rules say.")),
                ("delegated", choice(&["never", "also"], "Whether `allow` is also for calls on behalf of others. `deny` always is.")),
                ("attributes", json!({ "type": "object", "description": "Values of declared attributes." })),
            ])),
            "subject": tables("Somebody for whom agents act.", object([
                ("description", text("Who it is.")),
                ("roles", strings("Roles granted beside those in the token.")),
                ("allow", patterns("Methods that agents may call on its behalf.")),
                ("deny", patterns("Methods that no agent may call on its behalf, whatever other rules say.")),
                ("attributes", json!({ "type": "object", "description": "Values of declared attributes." })),
            ])),
            "method": tables("A method and its parameters.", object([
                ("description", text("What the method does.")),
                ("params", json!({
                    "type": "array",
                    "description": "The parameters in the order of their positions.",
                    "items": { "$ref": "#/definitions/param" },
                })),
                ("audit", choice(&["after", "before"], "Whether a call runs only once its decision is on disk.")),
            ])),
            "claims": types("Claims of tokens that rules may ask, and their types."),
            "attributes": types("Attributes of agents that rules may ask, and their types."),
            "approval": tables("People who let a call run that a deny rule denies.", with(object([
                ("description", text("What it is for.")),
                ("from", with(strings("The roles whose holders decide."), json!({ "minItems": 1 }))),
                ("count", json!({ "type": "integer", "minimum": 1, "maximum": 10, "description": "How many of them have to approve." })),
                ("within", reference("duration", "How long a call waits for them, at most 24h.")),
                ("valid", reference("duration", "How long after the last approval the call can start, at most 1h.")),
                ("reason", json!({ "type": "boolean", "description": "Whether they have to say why." })),
                ("distinct", text("An attribute of agents: those with the same value are one person, who decides once.")),
                ("exclude", json!({
                    "type": "array",
                    "items": { "type": "string", "enum": Involved::NAMED.map(|(name, _)| name) },
                    "description": "Who must not decide: the calling agent, its subject, those who passed its rights on. All, if absent.",
                })),
            ]), json!({ "required": ["from"] }))),
            "budget": tables("An upper limit on permitted calls, or on the sum of one of their parameters.", with(object([
                ("description", text("What it is for.")),
                ("methods", with(patterns("The methods whose calls are charged."), json!({ "minItems": 1 }))),
                ("roles", strings("Only calls of callers with any of these roles.")),
                ("agents", strings("Only calls of these agents; `*` stands for any text.")),
                ("subjects", strings("Only calls on behalf of these subjects; `*` stands for any text.")),
                ("everyone", json!({ "type": "boolean", "description": "All callers, as if none were named." })),
                ("per", choice(&["agent", "subject"], "For whom it is kept.")),
                ("calls", limit("How many calls, in which time.")),
                ("sum", text("A parameter that is added up: a required integer of all these methods.")),
                ("at_most", limit("The highest sum, in which time.")),
                ("shared", json!({ "type": "boolean", "description": "Whether all replicas count together. Each for itself, if absent." })),
            ]), json!({ "required": ["methods", "per"], "anyOf": [{ "required": ["calls"] }, { "required": ["sum", "at_most", "shared"] }] }))),
            "rule": tables("A named rule with conditions.", rule(object([
                ("description", text("What the rule is for.")),
                ("roles", strings("Callers with any of these roles.")),
                ("agents", strings("These agents; `*` stands for any text.")),
                ("subjects", strings("These subjects of delegated calls; `*` stands for any text.")),
                ("everyone", json!({ "type": "boolean", "description": "All callers." })),
                ("allow", patterns("Methods that the rule allows.")),
                ("deny", patterns("Methods that the rule denies, whatever other rules say.")),
                ("unless_approved", text("The approval with which a call may run that the rule denies.")),
                ("delegated", choice(&["never", "also", "only"], "Which calls the rule is for: in the agent's own name, on behalf of others, or both.")),
                ("mode", choice(&["enforce", "shadow"], "A rule in shadow mode is evaluated and reported, and never decides.")),
                ("when", reference("conditions", "All of this must hold.")),
                ("unless", reference("conditions", "Not all of this may hold.")),
            ]))),
        },
        "definitions": {
            "param": param(),
            "condition": condition(),
            "param_condition": param_condition(),
            "text_condition": text_condition(&json!({ "type": "string" }), false),
            "subject_condition": text_condition(&json!({ "type": "string" }), true),
            "conditions": filled(object([
                ("params", conditions_on("param_condition", "Conditions on declared parameters.")),
                ("claims", conditions_on("condition", "Conditions on declared claims of the token.")),
                ("attributes", conditions_on("condition", "Conditions on declared attributes of the caller.")),
                ("agent", reference("text_condition", "A condition on the agent's name.")),
                ("subject", reference("subject_condition", "A condition on the subject for whom the agent acts; only delegated calls have one.")),
                ("issuer", reference("text_condition", "A condition on the token's issuer.")),
                ("key", reference("text_condition", "A condition on the key id of the proof.")),
                ("algorithm", text_condition(&choice(&ALGORITHMS, "How the message is signed."), false)),
                ("token_age", json!({
                    "description": "How old the token may be: \"5m\", or { min = \"1m\", max = \"1h\" }.",
                    "anyOf": [
                        { "$ref": "#/definitions/duration" },
                        filled(object([("min", reference("duration", "")), ("max", reference("duration", ""))])),
                    ],
                })),
                ("hours", json!({
                    "type": "string", "pattern": "^[ \t]*[0-2][0-9]:[0-5][0-9][ \t]*-[ \t]*[0-2][0-9]:[0-5][0-9][ \t]*$",
                    "description": "\"08:00-18:00\"; the end is not included; \"22:00-06:00\" ends on the next day.",
                })),
                ("days", json!({
                    "type": "array", "minItems": 1,
                    "items": { "type": "string", "pattern": "^[ \t]*(mon|tue|wed|thu|fri|sat|sun)[ \t]*(-[ \t]*(mon|tue|wed|thu|fri|sat|sun)[ \t]*)?$" },
                    "description": "mon, tue, wed, thu, fri, sat, sun, or ranges: [\"mon-fri\"].",
                })),
                ("utc_offset", json!({
                    "type": "string", "pattern": "^(Z|[+-][0-9]{2}:[0-9]{2})$",
                    "description": "The offset in which `hours` and `days` are meant: \"+02:00\". UTC if absent.",
                })),
            ])),
            "duration": { "type": "string", "pattern": "^[0-9]+[smhd]$" },
        },
    })
}

/// The schema of a `*.test.toml` file.
#[must_use]
pub fn test_json_schema() -> Value {
    let caller = object([
        ("agent", text("The agent's name.")),
        ("roles", strings("The roles of the token.")),
        ("on_behalf_of", text("The subject, for a delegated call.")),
        ("algorithm", choice(&["HS256", "EdDSA"], "How the message is signed.")),
        ("token_age", json!({ "type": "string", "pattern": "^[0-9]+[smhd]$", "description": "How old the token is." })),
        ("key", text("The key id of the proof.")),
        ("issuer", text("The token's issuer.")),
        ("claims", json!({ "type": "object", "description": "Other claims of the token." })),
    ]);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Sealwire policy expectations",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "caller": tables("A caller that cases refer to by name.", caller.clone()),
            "case": { "type": "array", "items": object([
                ("name", text("What the case shows.")),
                ("caller", json!({ "anyOf": [{ "type": "string" }, caller] })),
                ("method", text("The method.")),
                ("params", json!({ "type": ["object", "array"], "description": "The parameters." })),
                ("raw_params", text("The parameters as JSON text, for spellings that TOML does not have.")),
                ("at", json!({ "description": "A date and time, or \"fri 14:00\" (UTC)." })),
                ("approved", strings("The approvals that were given for the call.")),
                ("expect", choice(&["allow", "deny", "wait"], "The expected verdict; `wait`: it is denied until it is approved.")),
                ("rule", text("The rule that must have decided.")),
                ("reason", choice(&Reason::LABELS, "The reason that must be given.")),
            ]) },
        },
    })
}

fn object<const N: usize>(properties: [(&str, Value); N]) -> Value {
    let properties: Map<String, Value> = properties.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

fn tables(description: &str, table: Value) -> Value {
    json!({ "type": "object", "description": description, "additionalProperties": table })
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn strings(description: &str) -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "description": description })
}

fn patterns(description: &str) -> Value {
    let pattern = "^(\\*|[A-Za-z0-9_-]+([/.][A-Za-z0-9_-]+)*([/.]\\*)?)$";
    json!({
        "type": "array", "description": description,
        "items": { "type": "string", "pattern": pattern, "examples": ["math/add", "math/*", "*"] },
    })
}

fn limit(description: &str) -> Value {
    json!({ "type": "string", "pattern": "^[0-9]+/([0-9]*[smhd]|min|day)$", "description": description })
}

fn choice(values: &[&str], description: &str) -> Value {
    json!({ "type": "string", "enum": values, "description": description })
}

fn reference(name: &str, description: &str) -> Value {
    // A `$ref` hides the keywords beside it, so the description goes around it.
    json!({ "description": description, "allOf": [{ "$ref": format!("#/definitions/{name}") }] })
}

fn conditions_on(kind: &str, description: &str) -> Value {
    let condition = json!({ "$ref": format!("#/definitions/{kind}") });
    filled(json!({ "type": "object", "description": description, "additionalProperties": condition }))
}

/// Adds further keywords to a schema.
fn with(mut schema: Value, keywords: Value) -> Value {
    if let (Some(schema), Value::Object(keywords)) = (schema.as_object_mut(), keywords) {
        schema.extend(keywords);
    }
    schema
}

/// Not empty: a file with no condition there does not load.
fn filled(object: Value) -> Value {
    with(object, json!({ "minProperties": 1 }))
}

/// A rule says whom it is about, and either allows or denies.
fn rule(rule: Value) -> Value {
    let some = json!({ "minItems": 1 });
    let none = json!({ "maxItems": 0 });
    with(
        rule,
        json!({ "allOf": [
        { "anyOf": [
            { "required": ["roles"], "properties": { "roles": some, "everyone": { "enum": [false] } } },
            { "required": ["agents"], "properties": { "agents": some, "everyone": { "enum": [false] } } },
            { "required": ["subjects"], "properties": { "subjects": some, "everyone": { "enum": [false] } } },
            { "required": ["everyone"], "properties": { "everyone": { "enum": [true] }, "roles": none, "agents": none, "subjects": none } },
        ] },
        { "anyOf": [
            { "required": ["allow"], "properties": { "allow": some, "deny": none } },
            { "required": ["deny"], "properties": { "deny": some, "allow": none } },
        ] },
    ] }),
    )
}

fn types(description: &str) -> Value {
    tables(description, json!({ "type": "string", "enum": ParamType::names() }))
}

fn param() -> Value {
    let mut names = ParamType::names();
    names.push("object");
    let param = object([
        ("name", text("The name in a call with named parameters.")),
        ("type", choice(&names, "The type; each has one spelling in JSON.")),
        ("optional", json!({ "type": "boolean", "description": "Whether a call may leave it out or send null." })),
        ("description", text("What it means.")),
        ("audit", choice(&["clear", "hash", "drop"], "What the record keeps of its value.")),
        (
            "fields",
            json!({ "type": "array", "items": { "$ref": "#/definitions/param" }, "description": "The members of an object." }),
        ),
    ]);
    with(
        param,
        json!({
            "required": ["name", "type"],
            "anyOf": [
                { "properties": { "type": { "enum": ["object"] } }, "required": ["fields"] },
                { "properties": { "type": { "enum": ParamType::names() }, "fields": false } },
            ],
        }),
    )
}

fn condition() -> Value {
    let scalar = || json!({ "type": ["string", "integer", "boolean"] });
    let list = || json!({ "type": "array", "minItems": 1, "items": scalar() });
    let count = || json!({ "type": "integer", "minimum": 0 });
    json!({
        "description": "A value to be equal to, or demands of which all must hold.",
        "anyOf": [
            scalar(),
            filled(object([
                ("is", scalar()), ("not", scalar()), ("in", list()), ("not_in", list()),
                ("min", json!({ "type": "number" })), ("max", json!({ "type": "number" })),
                ("glob", text("`*` stands for any text.")), ("not_glob", text("`*` stands for any text.")),
                ("same_as", text("Something else of the call: `agent`, `params.to`, `claims.tenant`.")),
                ("present", json!({ "type": "boolean" })),
                ("min_size", count()), ("max_size", count()),
                ("contains", scalar()), ("contains_any", list()), ("each_in", list()),
            ])),
        ],
    })
}

/// A condition, or conditions on the members of an object. A schema does not know which parameters are objects, so here
/// a mistyped constraint looks like a member; claims and attributes are never objects.
fn param_condition() -> Value {
    json!({
        "anyOf": [
            { "$ref": "#/definitions/condition" },
            filled(json!({ "type": "object", "additionalProperties": { "$ref": "#/definitions/param_condition" } })),
        ],
    })
}

/// A condition on a text of the call itself, which only some calls have if it is `optional`; `value` is what it can be.
fn text_condition(value: &Value, optional: bool) -> Value {
    let list = || json!({ "type": "array", "minItems": 1, "items": value });
    let mut asked = object([
        ("is", value.clone()),
        ("not", value.clone()),
        ("in", list()),
        ("not_in", list()),
        ("glob", text("`*` stands for any text.")),
        ("not_glob", text("`*` stands for any text.")),
        ("same_as", text("Something else of the call: `agent`, `params.to`, `claims.tenant`.")),
    ]);
    if let Some(keys) = asked.get_mut("properties").and_then(Value::as_object_mut).filter(|_| optional) {
        keys.insert("present".to_owned(), json!({ "type": "boolean" }));
    }
    json!({ "anyOf": [value, filled(asked)] })
}
