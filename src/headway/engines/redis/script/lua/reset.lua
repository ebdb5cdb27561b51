-- Make a ledger as new without knowing its limit: what RESET does, without a script of its kinds.
--
-- KEYS[1]  the root; KEYS[2..]: the hashes of the metrics to be reset; without any, what is in the root.
-- The answer: how many ledgers there were, -1 if there is no root, -2 if it is of another version.
--
-- The meta data stay, the epoch with them: a root that was deleted would look like a loss to its clients, and they
-- would quarantine it. A ledger of which nothing is stored is a fresh one, but what was taken before could be given
-- back to it; so where that is known by a tally, it goes on (`anew` in bucket.lua and fixed_window.lua; the state is
-- described in `codec.py`). Waiters are told to poll, and are served then.

local root = KEYS[1]
local meta = redis.call('HGET', root, 'm')
if not meta then
  return -1
end
local format, seq = struct.unpack('<dd', meta)
if format ~= 1 then
  return -2
end
local FOREVER, LONG_AGO = 4503599627370496, -4503599627370496
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A fresh ledger for which nothing can come back, or nil where it is enough that there is none.
local function anew(value)
  local kind = struct.unpack('<d', value)
  if kind == 1 then
    local tat, _, _, tally = struct.unpack('<dddd', value, #value - 31)
    tally = (tally + math.max(0, tat - now) + 1) % FOREVER
    return string.sub(value, 1, -33) .. struct.pack('<dddd', LONG_AGO, 0, LONG_AGO, tally)
  elseif kind == 4 then
    local _, _, tally = struct.unpack('<ddd', value, #value - 23)
    return string.sub(value, 1, -25) .. struct.pack('<ddd', LONG_AGO, 0, tally + 1)
  end
end

local found = 0
for i = math.min(2, #KEYS), #KEYS do
  local key = KEYS[i]
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local what, index = string.sub(field, 1, 1), string.sub(field, 2)
    local fresh = what == 's' and anew(redis.call('HGET', key, field))
    if fresh then
      redis.call('HSET', key, field, fresh)
    elseif what == 's' or what == 'a' or what == 'h' then
      redis.call('HDEL', key, field)
    end
    if what == 's' then
      redis.call('DEL', key .. ':c' .. index, key .. ':o' .. index)
      found = found + 1
    end
  end
end
-- Their pause is lifted; a pause of all is only if that was reset, and a quarantine is not.
meta = string.sub(meta, 1, 8) .. struct.pack('<d', seq + 1) .. string.sub(meta, 17, 32)
  .. (#KEYS == 1 and struct.pack('<d', 0) or string.sub(meta, 33, 40)) .. string.sub(meta, 41)
redis.call('HSET', root, 'm', meta)
redis.call('PUBLISH', string.match(root, '^(.-):{') .. ':news', root)
return found
