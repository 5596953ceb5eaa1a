//go:build race

package main

// raceDetector tells whether the test binary, and with it each process that it starts, has the race detector.
const raceDetector = true
