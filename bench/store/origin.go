package main

import (
	"errors"
	"io"
	"net/http"
)

// download fetches a file and writes it, which is the least that any contender
// does. On the host of the client, as a process of its own, as it is a peer.
func download(url string, w io.Writer) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(url + ": " + resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
