//go:build race

package watch

const schedules = 500 // the machine has no goroutines: the race detector has little to find here and makes it slow
