# One image for worker, relay and oncely. The build needs no database: sqlx-data.json holds what the queries need.
FROM rust:1.95.0-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock sqlx.toml sqlx-data.json oncely.default.toml README.md ./
COPY migrations migrations
COPY crates crates
COPY src src
COPY stores stores
# Members of the workspace, so that Cargo can read it; nothing of them is built.
COPY bench bench
COPY testbed testbed
COPY tests/models tests/models
COPY tests/programs tests/programs
COPY tests/tls tests/tls
COPY xtask xtask
RUN cargo build --locked --release --package oncely --bins --features otel

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 oncely \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin oncely
COPY --from=build /build/target/release/worker /build/target/release/relay /build/target/release/oncely /usr/local/bin/
COPY oncely.default.toml /etc/oncely/oncely.default.toml
USER 65532:65532
ENV ONCELY_CONFIG=/etc/oncely/oncely.toml
STOPSIGNAL SIGTERM
CMD ["worker"]
