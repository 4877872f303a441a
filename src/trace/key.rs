//! What spans say: the names of their attributes, as OpenTelemetry's conventions for RPC, JSON-RPC, MCP, GenAI and HTTP have them, and ours.
//! Never a name for parameters, results, tokens or reply subjects.

macro_rules! keys {
    ($($(#[$about:meta])* $constant:ident $name:literal;)*) => {
        $($(#[$about])* pub const $constant: &str = $name;)*

        /// All of them, for what has to name them beforehand.
        #[cfg(test)]
        pub(super) const ALL: &[&str] = &[$($name),*];

        /// A span of `tracing` with room for all of them.
        macro_rules! tracing_span {
            ($parent:expr, $kind:expr) => {
                tracing::info_span!(
                    target: "sealwire::trace",
                    parent: $parent,
                    "sealwire",
                    otel.kind = $kind,
                    "otel.name" = tracing::field::Empty,
                    "otel.status_code" = tracing::field::Empty,
                    $($name = tracing::field::Empty),*
                )
            };
        }
        pub(super) use tracing_span;
    };
}

keys! {
    /// `jsonrpc`.
    RPC_SYSTEM "rpc.system.name";
    /// A registered method, or `_OTHER`.
    RPC_METHOD "rpc.method";
    // Later versions of the conventions call it `rpc.status_code`.
    /// The code of an error.
    RPC_STATUS "rpc.response.status_code";
    /// The id of a call, as JSON.
    JSONRPC_ID "jsonrpc.request.id";
    /// By what it failed: a code, or a word.
    ERROR_TYPE "error.type";
    /// Whom a client calls: an audience, or a host.
    SERVER_ADDRESS "server.address";
    /// The port of that host.
    SERVER_PORT "server.port";
    /// `pipe` or `tcp`.
    NETWORK_TRANSPORT "network.transport";
    /// The method of MCP.
    MCP_METHOD "mcp.method.name";
    /// The revision of MCP.
    MCP_VERSION "mcp.protocol.version";
    /// `execute_tool`.
    GEN_AI_OPERATION "gen_ai.operation.name";
    /// The tool.
    GEN_AI_TOOL "gen_ai.tool.name";
    /// The method of HTTP.
    HTTP_METHOD "http.request.method";
    /// The template of the path.
    HTTP_ROUTE "http.route";
    /// The status of HTTP.
    HTTP_STATUS "http.response.status_code";
    /// How many entries a batch has.
    BATCH "sealwire.batch.entries";
    /// The agent whose key has proved the message.
    AGENT "sealwire.agent";
    /// The policy's reason.
    DECISION "sealwire.decision";
    /// The rule that decided.
    RULE "sealwire.rule";
    /// The revision of the policy.
    REVISION "sealwire.policy.revision";
    /// The id of the message, as in the log and in the record.
    MESSAGE_ID "sealwire.message.id";
    /// The replica.
    REPLICA "sealwire.replica";
    /// The backend.
    BACKEND "sealwire.backend";
}

/// A method that nobody has registered: its name is the caller's.
pub const OTHER_METHOD: &str = "_OTHER";
