package pairs

// rounds pairs n hosts so that each meets each other once, and in a round nobody is in two pairs: the circle method of tournaments. An odd number leaves one
// out in each round.
func rounds(n int) [][][2]int {
	if n < 2 {
		return nil
	}
	even := n + n%2
	ring := make([]int, even)
	for i := range ring {
		ring[i] = i
	}
	var out [][][2]int
	for range even - 1 {
		var round [][2]int
		for i := range even / 2 {
			a, b := ring[i], ring[even-1-i]
			if a < n && b < n {
				round = append(round, [2]int{min(a, b), max(a, b)})
			}
		}
		out = append(out, round)
		// The first stays, the others move on by one place.
		last := ring[even-1]
		copy(ring[2:], ring[1:even-1])
		ring[1] = last
	}
	return out
}

// dispatch runs each piece of work between two hosts, in order, as soon as both are free; at most so many at a time. It returns when all are done; what was not
// begun when stop closes is not begun.
func dispatch(stop <-chan struct{}, work [][2]int, atOnce int, run func(i int)) {
	busy := map[int]bool{}
	done := make(chan int)
	begun := make([]bool, len(work))
	running, left, first := 0, len(work), 0
	start := func() {
		for first < len(work) && begun[first] {
			first++
		}
		for i := first; i < len(work) && running < atOnce; i++ {
			if w := work[i]; !begun[i] && !busy[w[0]] && !busy[w[1]] {
				begun[i], busy[w[0]], busy[w[1]] = true, true, true
				running++
				left--
				go func() {
					run(i)
					done <- i
				}()
			}
		}
	}
	for {
		select {
		case <-stop:
			left = 0
		default:
			if left > 0 {
				start()
			}
		}
		if running == 0 {
			return
		}
		i := <-done
		running--
		busy[work[i][0]], busy[work[i][1]] = false, false
	}
}
