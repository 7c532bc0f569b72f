# A static binary and nothing else: no shell, no libraries, no package manager. The API server's CA comes with the
# service account, so no root certificates are needed either.
FROM rust:1.95.0-alpine AS build
RUN apk add --no-cache build-base
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package operating --bin operating

FROM scratch
COPY --from=build /src/target/release/operating /operating
USER 65532:65532
EXPOSE 9443 8080
ENTRYPOINT ["/operating"]
CMD ["serve"]
