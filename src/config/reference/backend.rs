//! The keys of `[[backend]]`.

use serde_json::json;

use super::key::Kind::{Choice, Flag, List, Name, Number, Path, Tables, Text, Texts};
use super::key::{Key, LeftOut, Table};
use crate::config::{BackendConfig, BackendCredentialConfig};

pub(super) fn backend() -> Vec<Key> {
    let texts = || List(Box::new(Text), 0);
    vec![
        Key::required("name", Name, "Its name in the log."),
        Key::required(
            "kind",
            Choice(&["stdio", "mcp", "exec", "http"]),
            "What it speaks: one JSON-RPC object per line (`stdio`), the Model Context Protocol over lines or over HTTP (`mcp`), nothing, with a command for each call (`exec`), or HTTP, with a request for each call (`http`).",
        ),
        Key::value(
            "command",
            texts(),
            json!([]),
            "The program and its arguments, passed on unchanged: no shell reads them. For `exec`, the beginning of each method's command.",
        ),
        Key::none(
            "prefix",
            Text,
            "nothing",
            "What the names of all methods of an `mcp` server begin with, before a `/`.",
        ),
        Key::none(
            "url",
            Text,
            "it is a program",
            "The address of a server that is called over HTTP: `https://…`, or `http://…` on this machine (a loopback address or `localhost`). For kinds that accept it.",
        ),
        Key::value(
            "allow_plaintext",
            Flag,
            false,
            "Whether `url` may be `http://…` on another machine. Anybody on the path can then read and change everything, credentials included.",
        ),
        Key::none(
            "tls_ca",
            Path,
            "those of the system",
            "A PEM file with the trust anchors for the server at `url`. Read at the start.",
        ),
        Key::value(
            "headers",
            Texts,
            json!({}),
            "Header fields of every request to `url`. No secrets: those are for `credential`.",
        ),
        Key::new(
            "credential",
            Tables(Table {
                about: "A header field with a secret, added to every request to `url`. Exactly one of `file`, `folder` and `command` says where the secret comes from. It is never the caller's token.",
                keys: credential(),
            }),
            LeftOut::Means("there is none"),
            "",
        ),
        Key::none("dir", Path, "that of this file", "The folder that its processes run in."),
        Key::value(
            "env",
            Texts,
            json!({}),
            "Its environment besides `PATH`, `HOME` and `LANG`. A secret is better kept in a file that the program reads, or in `pass_env`.",
        ),
        Key::value("pass_env", texts(), json!([]), "Variables of the service's own environment that it gets as well."),
        Key::value(
            "processes",
            Number("processes", 1, Some(64)),
            BackendConfig::PROCESSES,
            "How many processes of a `stdio` program share the calls.",
        ),
        Key::value(
            "in_flight",
            Number("calls", 1, Some(1024)),
            BackendConfig::IN_FLIGHT,
            "The most calls in flight. Further calls wait; agents take turns, and a single agent gets at most half.",
        ),
        Key::value(
            "timeout_s",
            Number("seconds", 1, Some(3600)),
            BackendConfig::TIMEOUT_S,
            "How long a call may take. A caller's own deadline may be earlier.",
        ),
        Key::value(
            "memory_mib",
            Number("MiB", 64, Some(1 << 20)),
            BackendConfig::MEMORY_MIB,
            "The memory of each process (`RLIMIT_DATA`).",
        ),
        Key::value(
            "open_files",
            Number("files", 32, Some(65_536)),
            BackendConfig::OPEN_FILES,
            "The open files of each process (`RLIMIT_NOFILE`).",
        ),
        Key::value(
            "send_caller",
            Flag,
            false,
            "Whether requests name the caller, `{\"agent\": …, \"subject\": …}`: for `stdio` in the member `caller`, for `mcp` in `_meta` as `dev.sealwire/caller`. The token is never sent.",
        ),
        Key::value(
            "batch",
            Flag,
            false,
            "For `http`: whether calls of one caller that arrive within 5 ms go to the server in one `POST`, as a JSON-RPC 2.0 batch of at most 32 calls and 1 MiB.",
        ),
        Key::none(
            "health",
            Text,
            "the server is available while it accepts connections",
            "For `http`: a path at `url`'s origin, such as `/livez`, that returns a success status while the server is available. Requested every 10 s, and before calls resume.",
        ),
        Key::new(
            "method",
            Tables(Table { about: "A method that the backend offers.", keys: method() }),
            LeftOut::Means("it offers none"),
            "",
        ),
    ]
}

fn credential() -> Vec<Key> {
    vec![
        Key::none("header", Text, "`\"Authorization\"`", "The name of the field."),
        Key::none("scheme", Text, "nothing", "What precedes the secret and a blank, such as `Bearer`."),
        Key::none(
            "file",
            Path,
            "it comes from elsewhere",
            "A file with the secret on one line, for its owner alone (mode 0600). Read again when it changes.",
        ),
        Key::none(
            "folder",
            Path,
            "it comes from elsewhere",
            "A folder with such a file for each agent or subject, named after it: letters, digits, `@ _ + -` and inner dots as they are, any other byte as `%2F`. Callers without a file there cannot call.",
        ),
        Key::value(
            "command",
            List(Box::new(Text), 0),
            json!([]),
            "A command that prints the secret on one line, within 10 s. No shell runs it. Its environment has `env` and `pass_env` and, for a caller's own secret, `SEALWIRE_AGENT` or `SEALWIRE_SUBJECT`. Run again when the server answers 401.",
        ),
        Key::value(
            "owner",
            Choice(&["service", "agent", "subject"]),
            "service",
            "Whose secret it is: the same for all calls, the calling agent's, or that of the subject on whose behalf the agent calls.",
        ),
        Key::value(
            "keep_s",
            Number("seconds", 1, Some(86_400)),
            BackendCredentialConfig::KEEP_S,
            "How long a secret that a command printed is used.",
        ),
    ]
}

fn method() -> Vec<Key> {
    vec![
        Key::required("name", Text, "The method on the bus, such as `clock/now`."),
        Key::none("tool", Text, "the same name", "What the backend itself calls it."),
        Key::none("description", Text, "nothing", "A one-line description."),
        Key::value(
            "push",
            Flag,
            false,
            "Whether callers can subscribe to it: to notifications with this name that a `stdio` program sends.",
        ),
        Key::none(
            "args",
            List(Box::new(Text), 0),
            "none",
            "For `exec`: the arguments after the backend's `command`. `{name}` stands for a declared parameter that is a string, an integer or a boolean; write a literal brace twice.",
        ),
        Key::none(
            "output",
            Choice(&["json", "text"]),
            "`\"json\"`",
            "For `exec`, and for `http` with a plain request: whether the answer is JSON or text. It becomes the result.",
        ),
        Key::none(
            "stream",
            Text,
            "a POST to `url`",
            "For `http`: the path of a GET with the JSON-RPC request in its query (`method`, `params`, `id`). The answer is a stream of events whose data are parts, until `[DONE]`.",
        ),
        Key::table(
            "http",
            "it is JSON-RPC",
            "For `http`: a plain request instead of JSON-RPC. `{name}` stands for a declared parameter that is a string, an integer or a boolean; write a literal brace twice.",
            vec![
                Key::value("verb", Choice(&["GET", "POST", "PUT", "PATCH", "DELETE"]), "GET", "The request method."),
                Key::required(
                    "path",
                    Text,
                    "The whole path at `url`'s origin, such as `/weather/{city}`. A parameter there can be at most one segment of the path.",
                ),
                Key::value(
                    "query",
                    Texts,
                    json!({}),
                    "The query: values by name. A value with an optional parameter that the call leaves out is left out, too.",
                ),
                Key::value("headers", Texts, json!({}), "Header fields: values by name, as in `query`."),
                Key::none(
                    "body",
                    Text,
                    "nothing",
                    "The body: a JSON text in which `{name}` stands for the whole value of a parameter of any type, such as `{\"city\": {city}, \"days\": 3}`; a parameter that the call leaves out becomes `null`.",
                ),
            ],
        ),
        Key::new(
            "params",
            Tables(Table {
                about: "A parameter, for rules on arguments. In the order of their positions, as policy files declare them (docs/policies.md).",
                keys: vec![
                    Key::required("name", Text, "Its name in a call with named parameters."),
                    Key::required(
                        "type",
                        Choice(&[
                            "string",
                            "integer",
                            "boolean",
                            "number",
                            "any",
                            "string[]",
                            "integer[]",
                            "boolean[]",
                        ]),
                        "Its type.",
                    ),
                    Key::value("optional", Flag, false, "Whether a call may leave it out or send `null`."),
                ],
            }),
            LeftOut::Means("rules on its arguments need declarations in the policy"),
            "",
        ),
    ]
}
