//! The code of the gRPC service, generated without protoc: its messages are in `src/servers/grpc.rs`.

fn main() {
    let method = |name: &str, route: &str, message: &str| {
        tonic_build::manual::Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::servers::grpc::{message}"))
            .output_type(format!("crate::servers::grpc::{message}Answer"))
            .codec_path("tonic_prost::ProstCodec")
            .build()
    };
    let site = tonic_build::manual::Service::builder()
        .name("Site")
        .package("compare")
        .method(method("add", "Add", "Add"))
        .method(method("echo", "Echo", "Echo"))
        .build();
    tonic_build::manual::Builder::new().compile(&[site]);
}
