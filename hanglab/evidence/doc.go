// Package evidence reads what a hung job leaves behind. Each reader takes a stream and a name for messages, goes by what it finds and not by
// the name, bounds what it holds, and gives what it could read when a file is cut off: files of a job that was killed often are.
package evidence
