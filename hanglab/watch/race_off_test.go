//go:build !race

package watch

const schedules = 10000
