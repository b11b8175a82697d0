// Package serve answers for what is watched: over HTTP as JSON, as metrics for Prometheus,
// live, and as a dashboard.
//
//	/api/v1/...     the REST interface
//	/openapi.json   what it is
//	/metrics        the newest value of each series, for Prometheus
//	/healthz        whether the server lives
//	/               the dashboard
//
// Times are RFC 3339, or milliseconds since 1970. Failures are {"error": ..., "hint": ...}
// with a proper status. Answers are compressed for those who can read that.
//
// # Who may ask
//
// With a token, /api and /metrics want it as "Authorization: Bearer TOKEN". A token in an
// address is refused, because addresses are written into logs. Without a token the server
// listens on loopback addresses only, and answers only requests that were addressed to
// one: otherwise a page of somebody else could have its name point here, and read along.
//
// # Bounds
//
// A request has a longest time span, a most of points and tasks, and a longest duration; a
// few of those that read much are answered at a time, others wait. What exceeds a bound
// is refused with 400 and the bound.
//
// The server also sends samples on, to a receiver of Prometheus' remote-write protocol;
// see [RemoteWrite].
package serve
