// Package relay sends the data of a machine's watch to the watch of another machine, and
// receives it there.
//
// Words:
//
//   - frame: the data of one call of a [watch.Sink]: samples, a task or an event. Frames of
//     a sender are numbered from 1, without gaps.
//   - spool: the directory in which frames wait until the receiver has them.
//   - applied: the number of the last frame that the receiver has stored.
//
// # Nothing lost, nothing twice
//
// A sender writes a frame to its spool before the call returns. So a kill loses no frame. It
// sends frames in their order, one request at a time, and removes a file of the spool when
// the receiver has applied all of its frames. If the spool is full the oldest file is
// removed, and an event records the number of lost frames.
//
// The receiver stores frames, waits until they are in its journals on the disk, records the
// number of the last one, and answers. It skips frames that it has applied. After a kill
// between the journal and the record it gets the frames of one request again. For samples
// and tasks that makes no difference: of two samples of a series with one time, and of two
// reports of a task, the later one counts. Events are compared with the stored ones, for as many frames
// as a request can have.
//
// A sender that begins asks for the applied number with a request without frames. If the
// receiver has applied frames that the sender never made, its spool was replaced by an older
// copy: it takes a new identity.
//
// # Frames
//
// In the spool and in requests a frame is
//
//	length   4 bytes, little endian, of the payload
//	crc      4 bytes, little endian: CRC-32C of the payload
//	payload  1 byte for its kind, and the body, compressed by zstd
//
// The body of samples (kind 1) is a time in ms since 1970 (varint), and then for each sample
// an ID with its length before it (uvarint), the time after the time before (varint), and the
// value (8 bytes, little endian). An ID is name, unit, and key and value of each label, each
// with its length before it. The body of a task (kind 2) and of an event (kind 3) is JSON.
//
// Files of the spool are named by the number of their first frame, in hexadecimal.
//
// Lock order: origin.mu, then Receiver.mu. Spool.mu is held while a frame is written, and no
// other lock is taken then.
package relay
