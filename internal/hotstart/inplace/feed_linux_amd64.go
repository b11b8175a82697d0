package inplace

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// feed is the writer of an input that is a pipe, in a trial. The pipe of the call itself belongs
// to its tool.
type feed struct {
	path  string
	ended chan struct{} // closed when the tool needs the writer no more
	done  chan struct{}
}

// startFeed begins to write standardContent to a pipe, or with writes false nothing.
func startFeed(path string, writes bool) *feed {
	f := &feed{path, make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(f.done)
		w, err := os.OpenFile(path, os.O_WRONLY, 0) // it waits for the reader
		if err != nil {
			return
		}
		defer w.Close()
		if writes {
			_, _ = w.Write(standardContent()) // a tool may end before it has read everything
		} else {
			<-f.ended
		}
	}()
	return f
}

func (f *feed) end() {
	close(f.ended)
	for {
		// It may wait for a reader, or for room in the pipe: both end with a reader that ends.
		r, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			r.Close()
		}
		select {
		case <-f.done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func (t *trial) endFeeds() {
	for _, f := range t.feeds {
		f.end()
	}
	t.feeds = nil
}
