package main

import (
	"errors"
	"io"
	"net/http"
)

// download fetches a file and writes it, the minimum of work for any contender. As a peer
// it runs on the host of the client, in a separate process.
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
