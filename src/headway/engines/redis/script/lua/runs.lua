-- Port of core/runs.py: (time, count) pairs in the order of time, as a Redis list of packed pairs. What is known of
-- both ends is kept with the state, so that a decision costs the same for 10 runs and for 1024, and mostly reads none
-- of them.

local RUN = '<dd'

-- From the state, where -1 stands for an end that is not known.
local function open_runs(key, size, total, first, last, last_count)
  local runs = {key = key, size = size, total = total}
  if size > 0 then
    runs.first = first >= 0 and first or nil
    if last >= 0 then
      runs.last, runs.last_count = last, last_count
    end
  end
  return runs
end

-- Of a ledger that begins. A list may outlive its root by a little, and then has runs that do not count any more.
local function new_runs(key)
  call('DEL', key)
  return {key = key, size = 0, total = 0}
end

local function runs_state(runs)
  return pack('<ddddd', runs.size, runs.total, runs.first or -1, runs.last or -1, runs.last_count or 0)
end

-- A list that is gone although the ledger remembers it was evicted: then the ledger cannot be trusted.
local function run_of(value)
  if not value then
    error('HEADWAY_LOST')
  end
  return unpack_from(RUN, value)
end

local function run_at(runs, index)
  return run_of(call('LINDEX', runs.key, index))
end

local function first_time(runs)
  if runs.size == 0 then
    return FOREVER
  end
  if not runs.first then
    runs.first = run_at(runs, 0)
  end
  return runs.first
end

local function last_run(runs)
  if not runs.last then
    runs.last, runs.last_count = run_at(runs, -1)
  end
  return runs.last, runs.last_count
end

local function add_run(runs, time, count)
  if runs.size > 0 then
    local last, there = last_run(runs)
    if last >= time then
      runs.last_count = there + count
      call('LSET', runs.key, -1, pack(RUN, last, runs.last_count))
      runs.total = runs.total + count
      return last
    end
  else
    runs.first, runs.fresh = time, true
  end
  call('RPUSH', runs.key, pack(RUN, time, count))
  runs.size = runs.size + 1
  runs.total = runs.total + count
  runs.last, runs.last_count = time, count
  return time
end

local function pop_run(runs)
  local time, count = run_of(call('LPOP', runs.key))
  if runs.first and runs.first ~= time then
    error('HEADWAY_LOST') -- a script that was ended half way has popped the first one
  end
  runs.size = runs.size - 1
  runs.total = runs.total - count
  runs.first = nil
  if runs.size == 0 then
    runs.last = nil
  end
  return count
end

-- Permits that came back without an end: their time ran out, or their holder gave them up. Counted beside the ledger,
-- and by rule, since under several rules a permit comes back once for each.
local function count_abandoned(ledger, count)
  if count > 0 then
    call('HINCRBY', ledger.key, 'a' .. ledger.index, count)
  end
end

-- Where the run of this time is; nil if it is gone. The ends first: permits mostly end in the order of their grants.
local function find_run(runs, time)
  if runs.size == 0 then
    return
  end
  local last, count = last_run(runs)
  if last == time then
    return runs.size - 1, count
  end
  local low, high = 0, runs.size - 2
  while low <= high do
    local middle = first_time(runs) == time and 0 or floor((low + high) / 2)
    local found
    found, count = run_at(runs, middle)
    if found == time then
      return middle, count
    elseif found < time then
      low = middle + 1
    else
      high = middle - 1
    end
  end
end

-- Take up to `count` away from the run of this time; returns how many there were.
local function remove_run(runs, time, count)
  local index, there = find_run(runs, time)
  if not index then
    return 0
  end
  if there > count then
    call('LSET', runs.key, index, pack(RUN, time, there - count))
    if index == runs.size - 1 then
      runs.last_count = there - count
    end
  else
    count = there
    if index == 0 then
      call('LPOP', runs.key)
      runs.first = nil
    elseif index == runs.size - 1 then
      call('RPOP', runs.key)
    else
      call('LREM', runs.key, index * 2 < runs.size and 1 or -1, pack(RUN, time, there))
    end
    if index == runs.size - 1 then
      runs.last = nil
    end
    runs.size = runs.size - 1
  end
  runs.total = runs.total - count
  return count
end

-- The time of the run that brings the sum to `count`; there must be as many.
local function time_of(runs, count)
  local from, time = 0, 0
  while from < runs.size do
    for _, run in ipairs(call('LRANGE', runs.key, from, from + 31)) do
      local there
      time, there = unpack_from(RUN, run)
      count = count - there
      if count <= 0 then
        return time
      end
    end
    from = from + 32
  end
  return time
end
