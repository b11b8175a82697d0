package main

// chosen is premix transfer get in the cell.
func (c *cell) chosen() error { return nil }

// captureCost compares copies with and without a capture.
func (c *cell) captureCost() error { return nil }
