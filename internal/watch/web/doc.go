// Package web serves the recorded series, tasks and events over HTTP: as JSON, as metrics
// for Prometheus, as a live stream, and as a dashboard.
//
//	/api/v1/...     the REST interface
//	/openapi.json   its description
//	/metrics        the newest value of each series, for Prometheus
//	/healthz        whether the server is alive
//	/               the dashboard
//
// Times are RFC 3339, or milliseconds since 1970. Failures are {"error": ..., "hint": ...}
// with the matching status code. Answers are compressed if the client accepts that.
//
// # Access
//
// If the server has a token, /api and /metrics require it as "Authorization: Bearer TOKEN".
// A token in an address is refused, because addresses are written into logs. Without a
// token the server listens on loopback addresses only, and answers only requests that name
// one as their host: otherwise the web page of an attacker could point its own host name at
// this server and read the answers (DNS rebinding).
//
// # Bounds
//
// The time span, the points, the tasks and the duration of a request are limited. A few
// large requests are answered at a time; others wait. A request that exceeds a limit is
// refused with 400 and the limit.
//
// The server also forwards samples to a receiver of Prometheus' remote-write protocol; see
// [RemoteWrite].
package web
