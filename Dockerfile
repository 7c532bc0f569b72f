# A static binary and nothing else: no shell, no libraries, no package manager. The root certificates are for endpoints of
# webhook rules without a caBundle; the API server's CA comes with the service account.
FROM rust:1.95.0-alpine AS build
RUN apk add --no-cache build-base ca-certificates
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package operating --bin operating

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/target/release/operating /operating
USER 65532:65532
EXPOSE 9443 8080
ENTRYPOINT ["/operating"]
CMD ["serve"]
