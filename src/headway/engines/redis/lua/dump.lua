-- A whole ledger as it is, for who has to change the rule it is kept by: meta data, then of each rule what is stored and
-- its two lists of runs.

local answer = {redis.call('HGET', KEYS[1], 'm')}
for i = 1, #ARGV do
  local at = KEYS[tonumber(ARGV[i])]
  answer[#answer + 1] = redis.call('HGET', at, 's' .. i)
  answer[#answer + 1] = table.concat(redis.call('LRANGE', at .. ':c' .. i, 0, -1))
  answer[#answer + 1] = table.concat(redis.call('LRANGE', at .. ':o' .. i, 0, -1))
end
return answer
