// Package evidence reads what a hung job leaves behind: Read takes any mix of files, folders, archives and standard input, recognises each by what is
// in it, and gives facts with their file and line. Readers bound what they hold, go on after a bad line, and give what they could read when a file is
// cut off: files of a job that was killed often are. Nothing that is read is ever executed or written anywhere.
package evidence
