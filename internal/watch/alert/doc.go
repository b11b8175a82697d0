// Package alert compares series with rules, and sends a message when a condition begins to
// hold or has ended.
//
// Words:
//
//   - rule: a condition on series, with the time for which it must hold (docs/watch.md).
//   - alert: a rule and one series of which the condition holds. It is pending until the
//     condition has held for the rule's time; then it fires, until the condition ends.
//   - receiver: a webhook or a list of mail addresses.
//   - message: the changes that one evaluation found, for one receiver.
//
// # Evaluation
//
// All rules are evaluated at a fixed interval, over the newest sample of each series. A
// value that crosses a bound and returns between two evaluations is not noticed. A series
// without a sample for [Rules.Stale] is unknown: its alert ends, except an alert of a rule
// about absence.
//
// # Messages
//
// A receiver gets one message when an alert fires and one when it ends, in this order. State
// and waiting messages are in one file, which is written before a message is sent and
// after it was accepted. After a kill between these two writes the message is sent again,
// with the same id; in no other case is a state sent twice. A message that the receiver
// refuses for good, or that does not fit into the queue, is dropped and recorded as an
// event.
//
// A webhook gets the JSON of Prometheus' Alertmanager, version 4
// (https://prometheus.io/docs/alerting/latest/configuration/#webhook_config), so that
// programs written for it can be used. Its header Idempotency-Key has the message's id.
//
// Lock order: Engine.mu, then nothing. No lock is held during I/O, except by the write of the
// state file, which only the goroutine of [Engine.Run] and senders do, under Engine.saving.
// Engine.saving is taken before Engine.mu.
package alert
